/* Thousands of reads and writes in batches, pollers, cancellation, registered buffers. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

enum { ENTRIES = 4096, BLOCK = 4096, CANCELLED = 1000 };

static weft_fs *fs;
static weft_file *file;
static unsigned char *bytes, *back;

static void pattern(unsigned char *block, unsigned number)
{
    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = (unsigned char)(number * 7 + i * (number | 1));
}

/* Reaps so many completions, each once, all of which answer res. */
static void reap_all(weft_ring *ring, int count, long long res)
{
    static struct weft_cqe cqes[ENTRIES];
    static unsigned char seen[ENTRIES];
    memset(seen, 0, sizeof seen);
    while (count > 0) {
        int reaped = MUST(weft_ring_reap(ring, cqes, ENTRIES, 1, -1));
        THAT(reaped >= 1 && reaped <= count);
        for (int i = 0; i < reaped; i++) {
            THAT(cqes[i].user_data < ENTRIES && !seen[cqes[i].user_data]);
            seen[cqes[i].user_data] = 1;
            IS(cqes[i].res, res);
        }
        count -= reaped;
    }
}

static void batches(weft_ring *ring)
{
    for (unsigned i = 0; i < ENTRIES; i++) {
        pattern(bytes + (size_t)i * BLOCK, i);
        MUST(weft_ring_prep_pwrite(ring, file, bytes + (size_t)i * BLOCK, BLOCK, (off_t)i * BLOCK, i));
    }
    IS(weft_ring_prep_fsync(ring, file, 0), -EAGAIN);
    IS(weft_ring_submit(ring), ENTRIES);
    /* Its place is taken until it is reaped. */
    IS(weft_ring_prep_fsync(ring, file, 0), -EAGAIN);
    reap_all(ring, ENTRIES, BLOCK);
    MUST(weft_ring_prep_fsync(ring, file, 0));
    IS(weft_ring_submit(ring), 1);
    reap_all(ring, 1, 0);
    IS(weft_ring_submit(ring), 0);

    memset(back, 0, (size_t)ENTRIES * BLOCK);
    for (unsigned i = 0; i < ENTRIES; i++) {
        unsigned at = (i * 1663 + 5) % ENTRIES;
        MUST(weft_ring_prep_pread(ring, file, back + (size_t)at * BLOCK, BLOCK, (off_t)at * BLOCK, at));
    }
    IS(weft_ring_submit(ring), ENTRIES);
    reap_all(ring, ENTRIES, BLOCK);
    THAT(memcmp(bytes, back, (size_t)ENTRIES * BLOCK) == 0);

    /* Lists of buffers, and an error that is the entry's alone. */
    char a[10], b[BLOCK];
    struct iovec list[] = {{a, sizeof a}, {b, sizeof b}};
    struct weft_cqe cqes[2];
    MUST(weft_ring_prep_preadv(ring, file, list, 2, BLOCK, 1));
    list[0].iov_base = NULL;
    IS(weft_ring_submit(ring), 1);
    IS(weft_ring_reap(ring, cqes, 1, 1, -1), 1);
    IS(cqes[0].res, sizeof a + sizeof b);
    THAT(memcmp(a, bytes + BLOCK, sizeof a) == 0);
    THAT(memcmp(b, bytes + BLOCK + sizeof a, sizeof b) == 0);
    struct iovec words[] = {{"scat", 4}, {"ter", 3}};
    MUST(weft_ring_prep_pwritev(ring, file, words, 2, 0, 2));
    MUST(weft_ring_submit(ring));
    IS(weft_ring_reap(ring, cqes, 2, 2, -1), 1);
    IS(cqes[0].res, 7);
    IS(weft_pread(file, a, 7, 0), 7);
    THAT(memcmp(a, "scatter", 7) == 0);
    IS(weft_ring_prep_pread(ring, file, NULL, 1, 0, 0), -EFAULT);
    IS(weft_ring_prep_pread(ring, file, a, 1, -1, 0), -EINVAL);
    IS(weft_ring_prep_pread(ring, NULL, a, 1, 0, 0), -EINVAL);
    IS(weft_ring_prep_pread(NULL, file, a, 1, 0, 0), -EINVAL);
    IS(weft_ring_reap(ring, cqes, 2, 1, 0), 0);
    IS(weft_ring_reap(ring, cqes, 1, 2, 0), -EINVAL);
    IS(weft_ring_reap(ring, NULL, 1, 0, 0), -EFAULT);
}

static int readable(int fd, int timeout)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    return poll(&poller, 1, timeout);
}

static void pollers(weft_ring *ring)
{
    struct weft_cqe cqes[8];
    char buf[16];
    int fd = MUST(weft_ring_eventfd(ring));
    IS(weft_ring_eventfd(ring), fd);
    IS(readable(fd, 0), 0);
    for (unsigned i = 0; i < 8; i++)
        MUST(weft_ring_prep_pread(ring, file, buf + i, 1, i, i));
    IS(readable(fd, 0), 0);
    MUST(weft_ring_submit(ring));
    IS(readable(fd, -1), 1);
    for (int left = 8; left > 0; left--) {
        IS(weft_ring_reap(ring, cqes, 1, 1, -1), 1);
        /* Who reads it is told again of what is left. */
        if (left == 5)
            (void)!read(fd, &(uint64_t){0}, sizeof(uint64_t));
        if (left > 5)
            IS(readable(fd, -1), 1);
    }
    IS(readable(fd, 0), 0);
}

/* Each entry completes once: done, with what was asked for, or cancelled, with nothing done. */
static void cancellation(weft_ring *ring)
{
    static struct weft_cqe cqes[CANCELLED];
    static int asked[CANCELLED];
    int cancelled = 0, done = 0, told = 0;
    unsigned char block[BLOCK];

    IS(weft_ring_cancel(ring, 12345), -ENOENT);
    MUST(weft_ftruncate(file, 0));
    MUST(weft_ftruncate(file, (off_t)CANCELLED * BLOCK));
    for (unsigned i = 0; i < CANCELLED; i++) {
        pattern(bytes + (size_t)i * BLOCK, i);
        MUST(weft_ring_prep_pwrite(ring, file, bytes + (size_t)i * BLOCK, BLOCK, (off_t)i * BLOCK, i));
    }
    MUST(weft_ring_submit(ring));
    for (int i = CANCELLED - 1; i >= 0; i--) {
        asked[i] = weft_ring_cancel(ring, i);
        THAT(asked[i] == 1 || asked[i] == -EALREADY || asked[i] == -ENOENT);
        told += asked[i] == 1;
    }
    IS(weft_ring_reap(ring, cqes, CANCELLED, CANCELLED, -1), CANCELLED);
    static unsigned char outcome[CANCELLED];
    for (int i = 0; i < CANCELLED; i++) {
        uint64_t at = cqes[i].user_data;
        THAT(at < CANCELLED && outcome[at] == 0);
        THAT(cqes[i].res == BLOCK || cqes[i].res == -ECANCELED);
        outcome[at] = cqes[i].res == BLOCK ? 1 : 2;
        IS(outcome[at] == 2, asked[at] == 1);
        cancelled += outcome[at] == 2, done += outcome[at] == 1;
    }
    IS(cancelled, told);
    IS(cancelled + done, CANCELLED);
    /* No write that was acknowledged is lost, and none that was cancelled was done. */
    for (int i = 0; i < CANCELLED; i++) {
        IS(weft_pread(file, block, BLOCK, (off_t)i * BLOCK), BLOCK);
        if (outcome[i] == 2)
            memset(bytes + (size_t)i * BLOCK, 0, BLOCK);
        THAT(memcmp(block, bytes + (size_t)i * BLOCK, BLOCK) == 0);
    }
    printf("%d writes were cancelled, %d done\n", cancelled, done);
}

static void registered(weft_ring *ring)
{
    struct weft_cqe cqe;
    char one[100], two[50] = "from a registered buffer";
    struct iovec list[] = {{one, sizeof one}, {two, sizeof two}};
    IS(weft_ring_unregister_buffers(ring), -ENXIO);
    IS(weft_ring_register_buffers(ring, list, 0), -EINVAL);
    IS(weft_ring_register_buffers(ring, list, 2), 0);
    IS(weft_ring_register_buffers(ring, list, 2), -EBUSY);
    IS(weft_ring_prep_pread_fixed(ring, file, 2, 0, 1, 0, 0), -EFAULT);
    IS(weft_ring_prep_pread_fixed(ring, file, 0, 50, 51, 0, 0), -EFAULT);
    IS(weft_ring_prep_pread_fixed(ring, file, 0, SIZE_MAX, 2, 0, 0), -EFAULT);
    MUST(weft_ring_prep_pwrite_fixed(ring, file, 1, 7, 17, 3, 8));
    IS(weft_ring_unregister_buffers(ring), -EBUSY);
    MUST(weft_ring_submit(ring));
    IS(weft_ring_reap(ring, &cqe, 1, 1, -1), 1);
    IS(cqe.res, 17);
    MUST(weft_ring_prep_pread_fixed(ring, file, 0, 10, 17, 3, 9));
    MUST(weft_ring_submit(ring));
    IS(weft_ring_reap(ring, &cqe, 1, 1, -1), 1);
    THAT(cqe.user_data == 9 && cqe.res == 17);
    THAT(memcmp(one + 10, "registered buffer", 17) == 0);
    IS(weft_ring_unregister_buffers(ring), 0);
}

/* After destroy its memory may go: what still ran is over. */
static void abandoned(void)
{
    weft_ring *ring;
    for (int round = 0; round < 20; round++) {
        unsigned char *own = malloc((size_t)CANCELLED * BLOCK);
        MUST(weft_ring_create(fs, CANCELLED + 1, &ring));
        for (unsigned i = 0; i < CANCELLED; i++)
            MUST(weft_ring_prep_pread(ring, file, own + (size_t)i * BLOCK, BLOCK, (off_t)i * BLOCK, i));
        MUST(weft_ring_submit(ring));
        /* Prepared and never submitted. */
        MUST(weft_ring_prep_pread(ring, file, own, BLOCK, 0, CANCELLED));
        IS(weft_ring_destroy(ring), 0);
        free(own);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    char *path = in(argv[2], "ring");
    weft_ring *ring;
    bytes = malloc((size_t)ENTRIES * BLOCK), back = malloc((size_t)ENTRIES * BLOCK);

    MUST(weft_connect(argv[1], NULL, &fs));
    MUST(weft_open(fs, path, O_RDWR | O_CREAT, 0600, &file));
    IS(weft_ring_create(fs, 0, &ring), -EINVAL);
    IS(weft_ring_create(fs, 1 << 30, &ring), -EINVAL);
    IS(weft_ring_create(fs, 1, NULL), -EFAULT);
    MUST(weft_ring_create(fs, ENTRIES, &ring));
    batches(ring);
    pollers(ring);
    cancellation(ring);
    registered(ring);
    abandoned();
    IS(weft_ring_destroy(ring), 0);
    IS(weft_ring_destroy(NULL), -EINVAL);
    IS(weft_close(file), 0);
    IS(weft_unlink(fs, path), 0);
    IS(weft_disconnect(fs), 0);
    free(path), free(bytes), free(back);
    return verdict();
}
