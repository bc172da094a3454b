/* Eight threads on one file and one connection, under a storm of signals. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { THREADS = 8, ROUNDS = 200, LENGTH = 3000 };

static const char *dir;
static weft_fs *fs;
static weft_file *file;
static int signals;

static void count(int number)
{
    (void)number;
    __atomic_add_fetch(&signals, 1, __ATOMIC_RELAXED);
}

static void *work(void *argument)
{
    int me = (int)(size_t)argument;
    char name[32], written[LENGTH], is[LENGTH];
    struct stat st;

    for (int round = 0; round < ROUNDS; round++) {
        off_t off = ((off_t)round * THREADS + me) * LENGTH;
        memset(written, 'a' + (me + round) % 26, LENGTH);
        IS(weft_pwrite(file, written, LENGTH, off), LENGTH);
        IS(weft_pread(file, is, LENGTH, off), LENGTH);
        THAT(memcmp(written, is, LENGTH) == 0);
        if (round % 20 == me)
            IS(weft_fsync(file), 0);
        /* Each thread has a last error of its own. */
        snprintf(name, sizeof name, "none-%d-%d", me, round);
        char *path = in(dir, name);
        IS(weft_stat(fs, path, &st), -ENOENT);
        THAT(strstr(weft_strerror_last(), name) != NULL);
        weft_file *own;
        IS(weft_open(fs, path, O_CREAT | O_EXCL | O_WRONLY, 0600, &own), 0);
        IS(weft_close(own), 0);
        IS(weft_unlink(fs, path), 0);
        free(path);
    }
    return NULL;
}

/* Threads of the library block all signals. */
static void masks(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int of_library = 0;

    while ((task = readdir(tasks)) != NULL) {
        char path[300], line[256], name[64] = "";
        unsigned long long blocked = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        if (status == NULL)
            continue;
        while (fgets(line, sizeof line, status) != NULL) {
            sscanf(line, "Name: %63s", name);
            sscanf(line, "SigBlk: %llx", &blocked);
        }
        fclose(status);
        if (strncmp(name, "weft", 4) != 0)
            continue;
        of_library++;
        for (int number = 1; number < 32; number++)
            THAT(number == SIGKILL || number == SIGSTOP || (blocked & 1ULL << (number - 1)));
    }
    closedir(tasks);
    THAT(of_library > 0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    dir = argv[2];
    char *path = in(dir, "common");
    pthread_t threads[THREADS];
    sigset_t mask;

    /* Without SA_RESTART: what can be interrupted is. */
    struct sigaction action = {.sa_handler = count};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);

    MUST(weft_connect(argv[1], NULL, &fs));
    /* The mask of who connects is as it was. */
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    THAT(!sigismember(&mask, SIGALRM) && !sigismember(&mask, SIGTERM));
    MUST(weft_open(fs, path, O_RDWR | O_CREAT, 0600, &file));
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    masks();
    setitimer(ITIMER_REAL, &never, NULL);
    THAT(__atomic_load_n(&signals, __ATOMIC_RELAXED) > 0);
    IS(weft_close(file), 0);
    IS(weft_unlink(fs, path), 0);
    IS(weft_disconnect(fs), 0);
    free(path);
    return verdict();
}
