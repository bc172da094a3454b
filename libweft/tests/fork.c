/* A child finds nothing connected, frees what it inherited and connects anew, while threads of the
 * parent go on. */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 20, THREADS = 3, LENGTH = 4096 };

static const char *cluster;
static char *path;
static weft_fs *fs;
static weft_file *file;
static weft_dir *list;
static weft_ring *rings[THREADS];
static int stop;

/* Holds whatever locks there are, now and then. */
static void *busy(void *argument)
{
    char buf[LENGTH];
    struct weft_cqe cqe;
    struct weft_dirent entry;
    size_t me = (size_t)argument;
    weft_ring *ring = rings[me];
    off_t off = (off_t)(me + 1) * LENGTH;

    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        memset(buf, 'a', sizeof buf);
        IS(weft_pwrite(file, buf, sizeof buf, off), LENGTH);
        IS(weft_ring_prep_pread(ring, file, buf, sizeof buf, off, 1), 0);
        THAT(weft_ring_submit(ring) >= 0);
        while (weft_ring_reap(ring, &cqe, 1, 1, 100) == 0)
            ;
        IS(cqe.res, LENGTH);
        THAT(weft_readdir(list, &entry) >= 0);
        IS(weft_seekdir(list, 0), 0);
    }
    return NULL;
}

static void child(void)
{
    char buf[8];
    struct stat st;
    struct weft_dirent entry;
    struct weft_cqe cqe;
    weft_fs *own;
    weft_file *own_file;
    weft_ring *ring = rings[0];

    /* What hangs is a failure. */
    alarm(60);
    IS(weft_stat(fs, path, &st), -ENOTCONN);
    THAT(strstr(weft_strerror_last(), "forked") != NULL);
    IS(weft_open(fs, path, O_RDONLY, 0, &own_file), -ENOTCONN);
    IS(weft_opendir(fs, "/", &list), -ENOTCONN);
    IS(weft_sync(fs), -ENOTCONN);
    IS(weft_read_many(fs, NULL, 0), -ENOTCONN);
    IS(weft_pread(file, buf, sizeof buf, 0), -ENOTCONN);
    IS(weft_pwrite(file, buf, sizeof buf, 0), -ENOTCONN);
    IS(weft_fsync(file), -ENOTCONN);
    IS(weft_readdir(list, &entry), -ENOTCONN);
    IS(weft_seekdir(list, 0), -ENOTCONN);
    IS(weft_ring_prep_pread(ring, file, buf, sizeof buf, 0, 1), -ENOTCONN);
    IS(weft_ring_submit(ring), -ENOTCONN);
    IS(weft_ring_reap(ring, &cqe, 1, 1, -1), -ENOTCONN);
    IS(weft_ring_cancel(ring, 1), -ENOTCONN);
    IS(weft_ring_eventfd(ring), -ENOTCONN);

    MUST(weft_connect(cluster, NULL, &own));
    MUST(weft_open(own, path, O_RDONLY, 0, &own_file));
    IS(weft_pread(own_file, buf, sizeof buf, 0), 8);
    THAT(memcmp(buf, "aaaaaaaa", 8) == 0);
    IS(weft_close(own_file), 0);

    for (size_t i = 0; i < THREADS; i++)
        IS(weft_ring_destroy(rings[i]), -ENOTCONN);
    IS(weft_closedir(list), -ENOTCONN);
    IS(weft_close(file), -ENOTCONN);
    IS(weft_disconnect(fs), -ENOTCONN);
    IS(weft_stat(own, path, &st), 0);
    IS(weft_disconnect(own), 0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    cluster = argv[1], path = in(argv[2], "shared");
    char buf[LENGTH];
    pthread_t threads[THREADS];
    struct stat st;

    MUST(weft_connect(cluster, NULL, &fs));
    MUST(weft_open(fs, path, O_RDWR | O_CREAT, 0600, &file));
    memset(buf, 'a', sizeof buf);
    IS(weft_pwrite(file, buf, sizeof buf, 0), LENGTH);
    IS(weft_fsync(file), 0);
    MUST(weft_opendir(fs, argv[2], &list));
    for (size_t i = 0; i < THREADS; i++) {
        MUST(weft_ring_create(fs, 64, &rings[i]));
        THAT(weft_ring_eventfd(rings[i]) >= 0);
        pthread_create(&threads[i], NULL, busy, (void *)i);
    }

    for (int i = 0; i < FORKS; i++) {
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            failures = 0;
            child();
            /* What was inherited is left alone by exit(3) as well. */
            exit(verdict());
        }
        int status = -1;
        IS(waitpid(pid, &status, 0), pid);
        IS(status, 0);
        IS(weft_stat(fs, path, &st), 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        IS(weft_ring_destroy(rings[i]), 0);
    }
    IS(weft_pread(file, buf, sizeof buf, LENGTH), LENGTH);
    IS(weft_closedir(list), 0);
    IS(weft_close(file), 0);
    IS(weft_disconnect(fs), 0);
    free(path);
    return verdict();
}
