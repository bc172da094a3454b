/* Writes and goes without closing or disconnecting: PROGRAM CLUSTER DIRECTORY, or does both in a
 * handler of atexit(3): with "handler" as third argument. With "verify" it sees that all is there.
 * With "lost" it says that it is ready, and writes when it is told to: to storage that is away. */
#include "check.h"

#include <fcntl.h>

enum { SIZE = 3 << 20 };

static unsigned char expected(size_t at)
{
    return (unsigned char)(at * 2654435761U >> 13);
}

static weft_fs *left_fs;
static weft_file *left_file;

static void cleanup(void)
{
    if (weft_close(left_file) != 0 || weft_disconnect(left_fs) != 0)
        _exit(3);
}

/* How long the cluster takes while it is there is not what is tested. */
#define IN_TIME(answer, call)                                                                      \
    do                                                                                             \
        (answer) = (call);                                                                         \
    while ((answer) == -ETIMEDOUT)

static unsigned char bytes[SIZE + 1];

static void lose(const char *cluster, char *path)
{
    weft_options options = WEFT_OPTIONS_INIT;
    options.op_timeout_s = 3;
    weft_fs *fs;
    weft_file *file;
    ssize_t answer;

    IN_TIME(answer, weft_connect(cluster, &options, &fs));
    MUST(answer);
    IN_TIME(answer, weft_open(fs, path, O_WRONLY | O_CREAT, 0600, &file));
    MUST(answer);
    free(path);
    printf("ready\n");
    fflush(stdout);
    MUST(getchar() == EOF ? -1 : 0);
    IN_TIME(answer, weft_pwrite(file, bytes, SIZE, 0));
    IS(answer, SIZE);
    exit(verdict());
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4)
        return 2;
    char *path = in(argv[2], "left");
    weft_fs *fs;
    weft_file *file;

    if (argc == 4 && strcmp(argv[3], "lost") == 0)
        lose(argv[1], path);
    MUST(weft_connect(argv[1], NULL, &fs));
    if (argc == 4 && strcmp(argv[3], "verify") == 0) {
        MUST(weft_open(fs, path, O_RDONLY, 0, &file));
        IS(weft_pread(file, bytes, sizeof bytes, 0), SIZE);
        for (size_t i = 0; i < SIZE; i++)
            if (bytes[i] != expected(i)) {
                IS(i, -1);
                break;
            }
        MUST(weft_close(file));
        MUST(weft_disconnect(fs));
        free(path);
        return verdict();
    }
    MUST(weft_open(fs, path, O_WRONLY | O_CREAT, 0600, &file));
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = expected(i);
    IS(weft_pwrite(file, bytes, SIZE, 0), SIZE);
    free(path);
    if (argc == 4) {
        left_fs = fs;
        left_file = file;
        atexit(cleanup);
    }
    exit(verdict());
}
