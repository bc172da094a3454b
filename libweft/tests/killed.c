/* PROGRAM CLUSTER DIRECTORY: writes records and tells on standard output the number of each that is
 * synced, until it is killed. PROGRAM CLUSTER DIRECTORY COUNT: sees that these are there. */
#include "check.h"

#include <fcntl.h>

enum { RECORD = 5000 };

static void fill(unsigned char *record, long number)
{
    for (long i = 0; i < RECORD; i++)
        record[i] = (unsigned char)(number * 31 + i);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4)
        return 2;
    char *path = in(argv[2], "records");
    unsigned char record[RECORD], is[RECORD];
    weft_fs *fs;
    weft_file *file;

    MUST(weft_connect(argv[1], NULL, &fs));
    if (argc == 3) {
        MUST(weft_open(fs, path, O_WRONLY | O_CREAT, 0600, &file));
        for (long number = 0;; number++) {
            fill(record, number);
            MUST(weft_pwrite(file, record, RECORD, number * RECORD));
            MUST(weft_fsync(file));
            /* This one is begun and not acknowledged when it is killed. */
            printf("%ld\n", number);
            fflush(stdout);
        }
    }
    MUST(weft_open(fs, path, O_RDONLY, 0, &file));
    for (long number = 0; number < atol(argv[3]); number++) {
        fill(record, number);
        IS(weft_pread(file, is, RECORD, number * RECORD), RECORD);
        THAT(memcmp(is, record, RECORD) == 0);
    }
    MUST(weft_close(file));
    MUST(weft_disconnect(fs));
    free(path);
    return verdict();
}
