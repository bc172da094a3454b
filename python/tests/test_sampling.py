"""Properties of how samples are shuffled, dealt and gone on with; no cluster and no torch."""

import random

import pytest

from weft._sampling import Deal, Permutation, Progress, digest

SEEDS = range(60)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 64, 65, 1000, 4097])
def test_a_permutation_has_each_once(n):
    order = Permutation(n, 7, 3)
    assert sorted(order[i] for i in range(n)) == list(range(n))
    assert [order[i] for i in range(n)] == [Permutation(n, 7, 3)[i] for i in range(n)]
    with pytest.raises(IndexError):
        order[n]


def test_seed_and_epoch_change_the_order():
    def order(seed, epoch):
        shuffle = Permutation(500, seed, epoch)
        return [shuffle[i] for i in range(500)]

    orders = [order(0, 0), order(0, 1), order(1, 0), order(1, 1), list(range(500))]
    assert len({tuple(one) for one in orders}) == len(orders)
    # No bias that one would see: mean displacement of a random order is n/3.
    moved = sum(abs(place - sample) for place, sample in enumerate(orders[0])) / 500
    assert 140 < moved < 195


def shape(seed):
    chance = random.Random(seed)
    n = chance.choice([0, 1, 5, 37, 200, 503])
    return chance, n, chance.randint(1, 9), chance.randint(1, 5), chance.randint(1, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sample_once_over_ranks_and_workers(seed):
    chance, n, block, ranks, workers = shape(seed)
    start = chance.randint(0, n)
    deal = Deal(n, block, ranks, start=start)
    given = [
        place
        for rank in range(ranks)
        for worker in range(workers)
        for place in deal.of_worker(rank, worker, workers)
    ]
    assert sorted(given) == list(range(start, n))
    assert [deal.length(rank) for rank in range(ranks)] == [
        len(list(deal.of_rank(rank))) for rank in range(ranks)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_sees_the_same_with_any_number_of_workers(seed):
    chance, n, block, ranks, workers = shape(seed)
    deal = Deal(n, block, ranks)
    for rank in range(ranks):
        whole = list(deal.of_rank(rank))
        taken = chance.randint(0, len(whole))
        streams = [list(deal.of_worker(rank, w, workers, taken)) for w in range(workers)]
        # A DataLoader takes a batch of each in turn.
        seen = []
        while any(streams):
            for stream in streams:
                seen += stream[:block]
                del stream[:block]
        assert seen == whole[taken:]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_goes_on_at_its_sample(seed):
    chance, n, block, ranks, workers = shape(seed)
    deal, rank, worker = Deal(n, block, ranks), ranks - 1, workers - 1
    whole = list(deal.of_worker(rank, worker, workers, 3))
    skip = chance.randint(0, len(whole) + 2)
    assert list(deal.of_worker(rank, worker, workers, 3, skip)) == whole[skip:]


def run(progress, count):
    """Takes some of what is left to a rank."""
    order = progress.order()
    places = progress.deal.of_rank(progress.rank, progress.taken)
    samples = [order[place] for place, _ in zip(places, range(count), strict=False)]
    progress.taken += len(samples)
    return samples


@pytest.mark.parametrize("seed", SEEDS)
def test_states_go_on_exactly(seed):
    chance, n, block, ranks, _ = shape(seed)

    def progress(rank):
        return Progress(n, block, seed=seed, rank=rank, ranks=ranks)

    seen = []
    for rank in range(ranks):
        one = progress(rank)
        one.set_epoch(2)
        while one.left():
            seen += run(one, chance.randint(1, 7))
            state, one = one.state(), progress(rank)
            one.load(state)
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("seed", SEEDS)
def test_other_ranks_go_on_at_the_end_of_a_batch(seed):
    chance, n, block, ranks, _ = shape(seed)
    batches = chance.randint(0, n // (block * ranks))
    seen, state = [], None
    for rank in range(ranks):
        one = Progress(n, block, seed=seed, rank=rank, ranks=ranks)
        seen += run(one, batches * block)
        state = one.state()
    others = chance.randint(1, 5)
    for rank in range(others):
        one = Progress(n, block + 1, rank=rank, ranks=others)
        one.load(state)
        seen += run(one, n)
    assert sorted(seen) == list(range(n))


def test_what_cannot_go_on_is_refused():
    one = Progress(100, 10, ranks=2)
    run(one, 15)
    state = one.state()
    with pytest.raises(ValueError, match="middle of a block"):
        Progress(100, 10, ranks=3).load(state)
    with pytest.raises(ValueError, match="100 samples"):
        Progress(99, 10, ranks=2).load(state)
    with pytest.raises(ValueError, match="version"):
        one.load({**state, "version": 2})
    # What was refused has changed nothing.
    kept = Progress(100, 10, ranks=3)
    with pytest.raises(ValueError, match="middle of a block"):
        kept.load({**state, "epoch": 7, "seed": 3})
    assert kept.state() == Progress(100, 10, ranks=3).state()


def test_a_state_knows_its_samples():
    names = [f"/a/{n}" for n in range(9)]
    moved = [f"/b/{n}" for n in range(9)]
    assert digest(names, "/a") == digest(moved, "/b") != digest(names)
    state = Progress(9, 2, data=digest(names)).state()
    Progress(9, 2, data=digest(names)).load(state)
    for others in (moved, names[::-1], ["/a/0/a/1", *names[2:], "/a"]):
        with pytest.raises(ValueError, match="other samples"):
            Progress(9, 2, data=digest(others)).load(state)


def test_uneven_ends_may_be_dropped():
    deal = Deal(107, 10, 3, drop_uneven=True)
    assert [deal.length(rank) for rank in range(3)] == [30, 30, 30]
