/* Writes and goes without closing or disconnecting: PROGRAM CLUSTER DIRECTORY, or does both in a
 * handler of atexit(3): with "handler" as third argument. With "verify" it sees that all is there. */
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

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4)
        return 2;
    char *path = in(argv[2], "left");
    static unsigned char bytes[SIZE + 1];
    weft_fs *fs;
    weft_file *file;

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
