//! Windows before drives of many sorts.

use super::*;

/// A drive: entries go one after the other through what moves `rate` bytes a second, and are
/// answered `latency` after that.
#[derive(Clone, Copy, Debug)]
struct Drive {
    latency: Duration,
    rate: f64,
    /// One in so many is answered at once; 0: none.
    cached: usize,
}

const fn drive(latency_us: u64, rate: f64) -> Drive {
    Drive { latency: Duration::from_micros(latency_us), rate, cached: 0 }
}

/// Who writes: always, in entries of `len`, with room for so many at the drive.
struct Writer {
    window: BulkWindow,
    now: Instant,
    /// When it moves the last byte that it was given.
    free: Instant,
    /// Of those on their way: when they are answered, when they were begun.
    out: Vec<(Instant, Instant)>,
    len: usize,
    slots: usize,
    count: usize,
}

impl Writer {
    fn new(len: usize, slots: usize) -> Self {
        let now = Instant::now();
        Self {
            window: BulkWindow::default(),
            now,
            free: now,
            out: Vec::new(),
            len,
            slots,
            count: 0,
        }
    }

    /// Writes for so long, while somebody reads or not. Answers bytes a second, and the mean of
    /// what was on its way.
    fn write(&mut self, to: Drive, seconds: f64, reads: bool) -> (f64, f64) {
        let (begun, before) = (self.now, self.count);
        let (mut held, mut all) = (0.0, 0.0);
        while (self.now - begun).as_secs_f64() < seconds {
            while self.out.len() * self.len < self.window.limit() && self.out.len() < self.slots {
                self.begin(to);
            }
            if self.out.len() * self.len < self.window.limit() {
                self.window.cap(self.out.len() * self.len);
            }
            let next = self.out.iter().enumerate().min_by_key(|(_, (end, _))| *end);
            let (end, since) = self.out.swap_remove(next.expect("something is on its way").0);
            let on_its_way = (self.out.len() + 1) * self.len;
            held += on_its_way as f64 * (end - self.now).as_secs_f64();
            all += (end - self.now).as_secs_f64();
            self.now = end;
            if reads {
                self.window.note_read(self.now);
            }
            self.window.note_write(self.len, since, self.now);
        }
        let written = (self.count - before) * self.len;
        (written as f64 / (self.now - begun).as_secs_f64(), held / all)
    }

    fn begin(&mut self, to: Drive) {
        self.count += 1;
        let cached = to.cached > 0 && self.count.is_multiple_of(to.cached);
        let moved = Duration::from_secs_f64(self.len as f64 / to.rate);
        let end = match cached {
            true => self.now,
            false => {
                self.free = self.free.max(self.now) + moved;
                self.free + to.latency
            }
        };
        self.out.push((end, self.now));
    }
}

const DRIVES: [Drive; 6] = [
    drive(60, 1.5e9),
    drive(60, 7e9),
    drive(60, 14e9),
    drive(1000, 7e9),
    drive(2000, 1e9),
    drive(4000, 2e8),
];

#[test]
fn a_drive_is_given_what_it_works_on_and_little_more() {
    for to in DRIVES {
        for (reads, wait) in [(false, WAIT), (true, WAIT_OF_READS)] {
            let mut writer = Writer::new(PART, 192);
            writer.write(to, 5.0, reads);
            let (written, out) = writer.write(to, 30.0, reads);
            assert!(written > 0.9 * to.rate, "{to:?} {reads}: {written}");
            // What keeps it at work, what was waited for when that was found, and what may wait.
            let work = to.latency.as_secs_f64() * to.rate + PART as f64;
            let most = (work + LEAST as f64 + wait * to.rate) * 1.2;
            assert!(out <= most, "{to:?} {reads}: {out}, not {most}");
        }
    }
}

#[test]
fn a_drive_that_has_become_slow_or_fast_is_known_anew() {
    for reads in [false, true] {
        let mut writer = Writer::new(PART, 192);
        writer.write(drive(60, 7e9), 5.0, reads);
        writer.write(drive(1000, 7e9), 15.0, reads);
        let (written, _) = writer.write(drive(1000, 7e9), 15.0, reads);
        assert!(written > 0.9 * 7e9, "{reads}: {written}");
        writer.write(drive(60, 1e9), 15.0, reads);
        let (_, out) = writer.write(drive(60, 1e9), 15.0, reads);
        assert!(out < 2.5e6, "{reads}: {out}");
    }
}

/// The places at the drive are taken by others.
#[test]
fn a_window_that_something_else_holds_goes_on_following() {
    let mut writer = Writer::new(PART, 32);
    let (written, _) = writer.write(drive(1000, 7e9), 5.0, false);
    assert!(written > 0.9 * 32.0 * PART as f64 / 1.1e-3, "{written}");
    writer.slots = 192;
    writer.write(drive(60, 1e9), 12.0, true);
    let (_, out) = writer.write(drive(60, 1e9), 5.0, true);
    assert!(out < 2e6, "{out}");
}

#[test]
fn what_a_cache_answers_now_and_then_is_no_measure() {
    for cached in [10, 100, 1000] {
        let to = Drive { cached, ..drive(2000, 1e9) };
        let mut writer = Writer::new(PART, 192);
        writer.write(to, 5.0, false);
        let (written, _) = writer.write(to, 20.0, false);
        assert!(written > 0.9 * to.rate, "one in {cached}: {written}");
    }
}

#[test]
fn entries_that_are_somewhat_shorter_count() {
    let to = drive(1000, 2e9);
    let mut writer = Writer::new(100 << 10, 192);
    writer.write(to, 5.0, false);
    let (written, _) = writer.write(to, 5.0, false);
    assert!(written > 0.85 * to.rate, "{written}");
}

#[test]
fn what_is_short_says_nothing() {
    let (mut window, now) = (BulkWindow::default(), Instant::now());
    (0..100).for_each(|_| window.note_write(4096, now, now + Duration::from_secs(1)));
    assert_eq!((window.limit(), window.alone), (LEAST, f64::INFINITY));
}
