//! Many reads in one call.

use crate::{Setup, pattern};
use weft_client::ReadItem;
use weft_gpu::{Memory, read_many};
use weft_proto::ErrorKind;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_read_of_a_batch_has_its_place_and_its_answer() {
    const FILES: usize = 300;
    const PLACE: usize = 20_000;
    let setup = Setup::new().await;
    let len = |file: usize| file * 97 % PLACE;
    for file in 0..FILES {
        let made = setup.file(&format!("f{file}"), &pattern(len(file), file as u64)).await;
        made.close().await.unwrap();
    }
    setup.file("long", &pattern(PLACE + 1, 1)).await.close().await.unwrap();
    let huge = pattern(9_000_000, 2);
    setup.file("huge", &huge).await.close().await.unwrap();
    let (start, memory) = setup.memory((FILES + 2) * PLACE + huge.len());
    setup.cuda.put(start, &vec![0xEE; memory.len()]);
    let mut items: Vec<_> = (0..FILES).map(|file| ReadItem::whole(format!("f{file}"))).collect();
    items.push(ReadItem::whole("long"));
    items.push(ReadItem::whole("missing"));
    let mut places: Vec<_> =
        (0..items.len()).map(|at| memory.slice(at * PLACE, PLACE).unwrap()).collect();
    // One that goes piece after piece, and has no room when it is longer than its place.
    items.push(ReadItem::whole("huge"));
    places.push(memory.slice(items.len() * PLACE - PLACE, huge.len()).unwrap());
    let answers = read_many(&setup.user, items.clone(), &places).await.unwrap();
    let found = setup.cuda.get(start, memory.len());
    for (file, answer) in answers[..FILES].iter().enumerate() {
        assert_eq!(answer.as_ref().unwrap(), &len(file));
        let place = &found[file * PLACE..][..PLACE];
        assert!(place[..len(file)] == pattern(len(file), file as u64), "file {file}");
        assert!(place[len(file)..].iter().all(|byte| *byte == 0xEE), "file {file}: more");
    }
    assert_eq!(answers[FILES].as_ref().unwrap_err().kind, ErrorKind::TooLarge);
    assert_eq!(answers[FILES + 1].as_ref().unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(answers[FILES + 2].as_ref().unwrap(), &huge.len());
    assert!(found[(FILES + 2) * PLACE..] == huge);
    assert!(found[FILES * PLACE..(FILES + 2) * PLACE].iter().all(|byte| *byte == 0xEE));
    let place = places[FILES + 2].clone();
    let short = [memory.slice(0, huge.len() - 1).unwrap()];
    let one = async |slices: Vec<_>| {
        read_many(&setup.user, vec![ReadItem::whole("huge")], &slices).await.unwrap().remove(0)
    };
    assert_eq!(one(short.to_vec()).await.unwrap_err().kind, ErrorKind::TooLarge);
    assert_eq!(one(vec![place]).await.unwrap(), huge.len());
    assert!(setup.cuda.get(start, PLACE) == found[..PLACE], "what has no room is not written");
    let short = read_many(&setup.user, items, &places[1..]).await;
    assert_eq!(short.unwrap_err().kind, ErrorKind::Invalid);
    drop(memory);
    setup.cuda.free(start);
    setup.end().await;
}

#[tokio::test]
async fn what_is_no_memory_of_one_gpu_is_refused() {
    let setup = Setup::new().await;
    let host = vec![0_u8; 4096];
    // SAFETY: memory that is refused is not used.
    let new = |start, len| unsafe { Memory::new(start, len) }.err().map(|error| error.kind);
    assert_eq!(new(host.as_ptr().addr() as u64, host.len()), Some(ErrorKind::Invalid));
    assert_eq!(new(0, 1), Some(ErrorKind::Invalid));
    assert_eq!(new(u64::MAX, 2), Some(ErrorKind::Invalid));
    let (start, memory) = setup.memory(8192);
    assert_eq!(new(start, 8193), Some(ErrorKind::Invalid));
    assert_eq!(new(start + 8192, 1), Some(ErrorKind::Invalid));
    assert_eq!(new(start, 0), None);
    for (at, len) in [(0, 8193), (8192, 1), (1, usize::MAX)] {
        assert_eq!(memory.slice(at, len).err().unwrap().kind, ErrorKind::Invalid);
    }
    let names: Vec<_> = weft_gpu::gpus().unwrap().into_iter().map(|gpu| gpu.name).collect();
    assert_eq!(names, ["No GPU 0", "No GPU 1"]);
    drop(memory);
    setup.cuda.free(start);
    setup.end().await;
}
