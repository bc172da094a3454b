"""Data sets without torch: listing, streams of files and of TAR archives."""

import io
import multiprocessing
import pickle
import tarfile
import time

import pytest

from weft._listing import list_samples
from weft._loading import FileStream, TarStream, ahead
from weft._sampling import Progress
from weft._tar import members, samples


def test_listings_are_sorted_and_filtered(fs, scratch):
    for name in ("b/1.jpg", "b/2.txt", "a/3.jpg", ".hidden/4.jpg", "c.jpg", ".d.jpg"):
        path = f"{scratch}/{name}"
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        fs.write_bytes(path, b"x" * len(name))
    fs.symlink(".", f"{scratch}/loop")

    def below(**options):
        return [path[len(scratch) + 1 :] for path in list_samples(fs, scratch, **options)]

    assert below() == ["a/3.jpg", "b/1.jpg", "b/2.txt", "c.jpg"]
    assert below(suffixes=".jpg") == ["a/3.jpg", "b/1.jpg", "c.jpg"]
    assert below(suffixes=[".txt", "3.jpg"]) == ["a/3.jpg", "b/2.txt"]
    assert below(pattern="b/*") == ["b/1.jpg", "b/2.txt"]
    assert below(recursive=False) == ["c.jpg"]
    assert below(accept=lambda path, stat: stat.st_size == 5) == ["c.jpg"]


def test_reading_ahead_keeps_the_order_and_raises_errors():
    def read(one):
        if one == 7:
            raise KeyError(one)
        return one * one

    for depth in (0, 1, 3, 100):
        assert list(ahead(iter(range(7)), read, depth)) == [one * one for one in range(7)]
        with pytest.raises(KeyError):
            list(ahead(iter(range(9)), read, depth))
        # Giving up early ends the thread.
        stream = ahead(iter(range(7)), read, depth)
        assert next(stream) == 0
        stream.close()


def stream(seed=1, rank=0, ranks=1, prefetch=2):
    progress = Progress(101, 8, seed=seed, rank=rank, ranks=ranks)
    return FileStream(lambda places: list(places), progress, prefetch)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_streams_go_on_exactly(workers):
    for worker in range(workers):
        whole = list(stream().iterate(worker, workers))
        for stop in (0, 1, 9, len(whole)):
            one, seen = stream(), []
            samples = one.iterate(worker, workers)
            seen = [next(samples) for _ in range(stop)]
            state = one.state()
            samples.close()
            again = stream(seed=99)
            again.load(state)
            assert seen + list(again.iterate(worker, workers)) == whole


def test_the_program_says_what_workers_gave_it():
    whole = [one for one in stream().iterate(0, 1)]
    first = stream()
    state = first.state(24)
    for workers in (1, 3):
        again = stream()
        again.load(state)
        parts = [list(again.iterate(worker, workers)) for worker in range(workers)]
        assert sorted(sum(parts, [])) == sorted(whole[24:])
    again.set_epoch(1)
    assert sorted(again.iterate(0, 1)) == sorted(whole)
    assert list(again.iterate(0, 1)) != whole


def test_a_state_of_another_worker_is_refused():
    one = stream()
    next(one.iterate(1, 2))
    again = stream()
    again.load(one.state())
    with pytest.raises(ValueError, match="worker"):
        next(again.iterate(0, 2))


def archive(names, form=tarfile.PAX_FORMAT):
    """An archive of files that hold their own names, a hundred times."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(name.encode()) * 100, time.time() + 0.5
            tar.addfile(info, io.BytesIO(name.encode() * 100))
    return out.getvalue()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_tarfile(fs, scratch, form):
    names = [f"d/{n:04}.{kind}" for n in range(300) for kind in ("jpg", "seg.png")]
    names += [] if form == tarfile.USTAR_FORMAT else ["long/" * 40 + "x.txt", "d/ä.txt"]
    data = archive(names, form)
    fs.write_bytes(f"{scratch}/a.tar", data)
    with fs.open(f"{scratch}/a.tar", "rb", 0) as file:
        found = list(members(file, len(data)))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        known = [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]
    assert found == known
    first = next(samples(fs, f"{scratch}/a.tar"))
    contents = fs.read_batch(first.ranges())
    assert first.filled(contents) == {
        "__key__": "d/0000",
        "__url__": f"{scratch}/a.tar",
        "jpg": b"d/0000.jpg" * 100,
        "seg.png": b"d/0000.seg.png" * 100,
    }


def test_damaged_archives_are_told(fs, scratch):
    data = archive([f"{n}.x" for n in range(5)])
    for name, damaged in {
        "cut": data[: 512 * 6 + 100],
        "header": data[:512] + b"\1" * 512 + data[1024:],
        "noise": bytes(range(256)) * 8,
    }.items():
        fs.write_bytes(f"{scratch}/{name}", damaged)
        with pytest.raises(tarfile.ReadError), fs.open(f"{scratch}/{name}", "rb", 0) as file:
            list(members(file, len(damaged)))


@pytest.fixture
def archives(fs, scratch):
    """Seven archives with 20 samples of two files each."""
    paths = []
    for shard in range(7):
        names = [f"{shard}-{n}.{kind}" for n in range(20) for kind in ("a", "b")]
        paths.append(f"{scratch}/{shard}.tar")
        fs.write_bytes(paths[-1], archive(names))
    return paths


def tars(fs, archives, rank=0, ranks=1, buffer=30, shuffle=True):
    options = {
        "batch_size": 8,
        "buffer": buffer,
        "seed": 5,
        "shuffle": shuffle,
        "rank": rank,
        "ranks": ranks,
        "prefetch": 2,
    }
    return TarStream(fs, archives, options)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 1), (2, 3)])
def test_archives_are_dealt_and_gone_on_with(fs, archives, ranks, workers):
    everything = []
    for rank in range(ranks):
        for worker in range(workers):
            whole = list(tars(fs, archives, rank, ranks).iterate(worker, workers))
            stop = len(whole) // 3
            one = tars(fs, archives, rank, ranks)
            given = one.iterate(worker, workers)
            seen = [next(given) for _ in range(stop)]
            state = one.state()
            given.close()
            again = tars(fs, archives, rank, ranks)
            again.load(state)
            assert seen + list(again.iterate(worker, workers)) == whole
            everything += whole
    keys = [sample["__key__"] for sample in everything]
    assert sorted(keys) == sorted(f"{shard}-{n}" for shard in range(7) for n in range(20))
    assert all(one["b"] == f"{one['__key__']}.b".encode() * 100 for one in everything)


def test_archives_are_shuffled_by_epoch(fs, archives):
    def keys(stream):
        return [sample["__key__"] for sample in stream.iterate(0, 1)]

    one = tars(fs, archives)
    first = keys(one)
    assert keys(one) == first
    one.set_epoch(1)
    assert keys(one) != first and sorted(keys(one)) == sorted(first)
    plain = keys(tars(fs, archives, shuffle=False))
    assert plain[:3] == ["0-0", "0-1", "0-2"]
    with pytest.raises(ValueError, match="rank"):
        tars(fs, archives, 1, 2).load(one.state())


def test_workers_that_stay_see_other_epochs():
    """A child has a copy, and is told by what it shares with its parent."""
    one = stream()
    one.load(stream().state(24))
    whole = [list(stream_at(epoch).iterate(0, 1)) for epoch in range(3)]
    ask, answer = multiprocessing.Pipe()

    def work():
        while answer.recv():
            answer.send(list(one.iterate(0, 1)))

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()

    def epoch():
        ask.send(True)
        return ask.recv()

    try:
        assert sorted(epoch()) == sorted(whole[0][24:])
        # What was gone on with is over: the same epoch has all samples, as the next ones.
        assert epoch() == whole[0]
        assert one.state(8)["taken"] == 8
        for number in (1, 2):
            one.set_epoch(number)
            assert epoch() == whole[number]
        one.set_epoch(0)
        assert epoch() == whole[0]
    finally:
        ask.send(False)
        worker.join()


def stream_at(epoch):
    one = stream()
    one.set_epoch(epoch)
    return one


@pytest.mark.parametrize("kind", ["files", "archives"])
def test_what_was_skipped_once_is_not_skipped_again(fs, archives, kind):
    def make():
        return stream() if kind == "files" else tars(fs, archives)

    def given(one, worker=0, workers=1):
        samples = one.iterate(worker, workers)
        return [str(sample) for sample in samples]

    for workers in (1, 2):
        whole = given(make(), workers - 1, workers)
        first = make()
        samples = first.iterate(workers - 1, workers)
        for _ in range(5):
            next(samples)
        state = first.state()
        samples.close()
        again = make()
        again.load(state, own=True)
        assert given(again, workers - 1, workers) == whole[5:]
        assert given(again, workers - 1, workers) == whole


@pytest.mark.parametrize("kind", ["files", "archives"])
def test_a_state_that_comes_too_late_is_told(fs, archives, kind):
    one = stream() if kind == "files" else tars(fs, archives)
    assert pickle.loads(pickle.dumps(one._shared)).news() is None
    shared = shared_copy(one._shared)
    if kind == "files":
        late = FileStream(one.read, one.progress, 0, shared)
    else:
        late = TarStream(fs, archives, one.options, shared)
    one.load(one.state())
    with pytest.raises(RuntimeError, match="state was loaded"):
        next(late.iterate(0, 1))


def shared_copy(shared):
    """What a fork makes: other marks of what was seen, and the same memory."""
    copy = type(shared)(shared._cells)
    vars(copy).update({**vars(shared)})
    return copy


def test_a_state_of_one_worker_is_for_the_same_ranks(fs):
    one = stream(rank=1, ranks=2)
    samples = one.iterate(0, 2)
    for _ in range(8):
        next(samples)
    state = one.state()
    stream(rank=1, ranks=2).load(state)
    for other in (stream(), stream(rank=0, ranks=2), stream(rank=1, ranks=3)):
        with pytest.raises(ValueError, match="one worker"):
            other.load(state)
    with pytest.raises(ValueError, match="one worker"):
        stream(rank=1, ranks=2).progress.load(state)


def test_an_epoch_that_was_set_and_set_back_has_all_samples():
    one = stream()
    one.load(stream().state(24))
    late = FileStream(one.read, stream().progress, 0, shared_copy(one._shared))
    late.progress.load(stream().state(24))
    one.set_epoch(1)
    one.set_epoch(0)
    whole = list(stream().iterate(0, 1))
    assert list(one.iterate(0, 1)) == whole == list(late.iterate(0, 1))


def sparse(kind):
    """An archive with a sparse file."""
    out = io.BytesIO()
    form = tarfile.GNU_FORMAT if kind == "S" else tarfile.PAX_FORMAT
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        info = tarfile.TarInfo("a.x")
        info.size = 512
        if kind == "S":
            info.type = tarfile.GNUTYPE_SPARSE
        else:
            info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        tar.addfile(info, io.BytesIO(b"x" * 512))
    return out.getvalue()


def negative(size):
    """An archive with a header that says a negative size."""
    data = bytearray(archive(["a.x"]))
    data[512 + 124 : 512 + 136] = tarfile.itn(size, 12, tarfile.GNU_FORMAT)
    data[512 + 148 : 512 + 156] = b" " * 8
    total = sum(data[512:1024])
    data[512 + 148 : 512 + 156] = b"%06o\0 " % total
    return bytes(data)


class InMemory:
    """An archive that is bytes."""

    def __init__(self, data):
        self._data = bytes(data)

    def pread(self, n, offset):
        return self._data[offset : offset + n]


def test_links_and_directories_have_no_content_whatever_their_size():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for kind, name in ((tarfile.LNKTYPE, "b.x"), (tarfile.DIRTYPE, "d"), (None, "c.x")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind or tarfile.REGTYPE, "a.x" if kind else ""
            info.size = 0 if kind else 5
            tar.addfile(info, io.BytesIO(b"12345"))
    data = bytearray(out.getvalue())
    for at in (0, 512):
        data[at + 124 : at + 136] = b"%011o\0" % 4096
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    assert list(members(InMemory(data), len(data))) == [("c.x", 1536, 5)]


def extended(size):
    """The same, of an extended header."""
    data = bytearray(negative(size))
    data[512 + 156] = ord("x")
    data[512 + 148 : 512 + 156] = b" " * 8
    data[512 + 148 : 512 + 156] = b"%06o\0 " % sum(data[512:1024])
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        sparse("S"),
        sparse("pax"),
        negative(-512),
        negative(-1024),
        extended(-512),
        extended(-1024),
        b"",
        *(archive(["a.x"], tarfile.GNU_FORMAT)[:end] for end in (512, 1024, 1536, 2048, 2500)),
    ],
)
def test_what_would_be_read_wrong_is_refused(fs, scratch, data):
    fs.write_bytes(f"{scratch}/a.tar", data)
    with pytest.raises(tarfile.ReadError):
        list(samples(fs, f"{scratch}/a.tar"))


def test_two_blocks_of_zeros_are_an_end(fs, scratch):
    data = archive(["a.x"], tarfile.GNU_FORMAT)
    # The folder, the header, 300 bytes, the end.
    fs.write_bytes(f"{scratch}/a.tar", data[: 5 * 512])
    assert [one.key for one in samples(fs, f"{scratch}/a.tar")] == ["a"]


def test_names_that_are_left_out(fs, scratch):
    names = ["__0001.jpg", "__0001.cls", "__meta__/a.x", "__x__", "d/__meta__/b.x", "._0001.jpg"]
    fs.write_bytes(f"{scratch}/a.tar", archive([*names, "d/._0002.jpg", "plain", "__a__.x"]))
    found = [(one.key, [file[0] for file in one.files]) for one in samples(fs, f"{scratch}/a.tar")]
    assert found == [
        ("__0001", ["jpg", "cls"]),
        ("d/__meta__/b", ["x"]),
        ("__a__", ["x"]),
    ]


def test_an_archive_that_is_replaced_meanwhile_is_told(fs, archives):
    one = tars(fs, archives[:1], shuffle=False)
    one.options["prefetch"] = 0
    given = one.iterate(0, 1)
    assert next(given)["a"] == b"0-0.a" * 100
    fs.rename(archives[1], archives[0])
    with pytest.raises(ValueError, match="changed"):
        list(given)
