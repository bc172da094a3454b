/* copy CLUSTER FROM TO: copies a local file into the filesystem, with several writes under way at a
 * time, and ends when it is durable. */
#include <weft.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 8, BLOCK = 4 << 20 };

static int failed(const char *what)
{
    fprintf(stderr, "copy: %s\n", what);
    return 1;
}

/* Waits for a write to end; answers its buffer, or -1. */
static int reap(weft_ring *ring, const ssize_t *lengths)
{
    struct weft_cqe cqe;
    if (weft_ring_reap(ring, &cqe, 1, 1, -1) != 1 || cqe.res != lengths[cqe.user_data])
        return -1;
    return (int)cqe.user_data;
}

int main(int argc, char **argv)
{
    ssize_t lengths[DEPTH];
    weft_fs *fs;
    weft_file *to;
    weft_ring *ring;
    off_t off = 0;
    int answer = 0;

    if (argc != 4) {
        fprintf(stderr, "usage: %s HOST:PORT[,HOST:PORT...] FROM TO\n", argv[0]);
        return 2;
    }
    int from = open(argv[2], O_RDONLY);
    char *bufs = malloc((size_t)DEPTH * BLOCK);
    if (from < 0 || bufs == NULL)
        return failed(strerror(errno));
    if (weft_connect(argv[1], NULL, &fs) < 0 ||
        weft_open(fs, argv[3], O_WRONLY | O_CREAT | O_TRUNC, 0666, &to) < 0 ||
        weft_ring_create(fs, DEPTH, &ring) < 0)
        return failed(weft_strerror_last());

    for (int used = 0; answer == 0;) {
        /* A buffer that is free: a new one, or that of a write that ended. */
        int at = used < DEPTH ? used++ : reap(ring, lengths);
        if (at < 0) {
            answer = failed(weft_strerror_last());
            break;
        }
        char *buf = bufs + (size_t)at * BLOCK;
        lengths[at] = read(from, buf, BLOCK);
        if (lengths[at] == 0) {
            /* All is read: the other buffers' writes end now. */
            while (--used > 0 && answer == 0)
                if (reap(ring, lengths) < 0)
                    answer = failed(weft_strerror_last());
            break;
        }
        if (lengths[at] < 0)
            answer = failed(strerror(errno));
        else if (weft_ring_prep_pwrite(ring, to, buf, (size_t)lengths[at], off, (uint64_t)at) < 0 ||
                 weft_ring_submit(ring) < 0)
            answer = failed(weft_strerror_last());
        off += lengths[at];
    }
    /* Waits for what is still under way: after it the buffers may go. */
    weft_ring_destroy(ring);
    free(bufs);
    close(from);
    if (answer == 0 && weft_fsync(to) < 0)
        answer = failed(weft_strerror_last());
    weft_close(to);
    weft_disconnect(fs);
    return answer;
}
