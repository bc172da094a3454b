/* read CLUSTER PATH: writes a file of the filesystem to standard output. */
#include <weft.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(void)
{
    fprintf(stderr, "read: %s\n", weft_strerror_last());
    exit(1);
}

int main(int argc, char **argv)
{
    static char buf[1 << 20];
    weft_fs *fs;
    weft_file *file;
    off_t off = 0;
    ssize_t n;

    if (argc != 3) {
        fprintf(stderr, "usage: %s HOST:PORT[,HOST:PORT...] PATH\n", argv[0]);
        return 2;
    }
    if (weft_connect(argv[1], NULL, &fs) < 0 || weft_open(fs, argv[2], O_RDONLY, 0, &file) < 0)
        fail();
    while ((n = weft_pread(file, buf, sizeof buf, off)) > 0) {
        if (fwrite(buf, 1, (size_t)n, stdout) != (size_t)n) {
            perror("read");
            return 1;
        }
        off += n;
    }
    if (n < 0)
        fail();
    weft_close(file);
    weft_disconnect(fs);
    return fflush(stdout) == 0 ? 0 : 1;
}
