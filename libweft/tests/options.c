/* struct weft_options of other versions, and what each option does. */
#include "check.h"

#include <fcntl.h>

enum { LATER = 16 };

/* What a later version may look like. */
struct later {
    struct weft_options now;
    unsigned char more[LATER];
};

static const char *cluster, *dir;

static int connect_with(const struct weft_options *options)
{
    weft_fs *fs;
    int answer = weft_connect(cluster, options, &fs);
    if (answer == 0)
        MUST(weft_disconnect(fs));
    return answer;
}

static void versions(void)
{
    struct weft_options options = WEFT_OPTIONS_INIT;
    IS(connect_with(NULL), 0);
    IS(connect_with(&options), 0);

    /* One of the first version, of which the rest is not there to be read. */
    size_t *first = malloc(2 * sizeof *first);
    if (first == NULL)
        abort();
    first[0] = 2 * sizeof *first, first[1] = 0;
    IS(connect_with((const struct weft_options *)first), 0);
    first[1] = 1ULL << 40;
    IS(connect_with((const struct weft_options *)first), -EINVAL);
    free(first);

    struct later later = {.now = WEFT_OPTIONS_INIT};
    later.now.size = sizeof later;
    IS(connect_with(&later.now), 0);
    later.more[LATER - 1] = 1;
    IS(connect_with(&later.now), -E2BIG);

    size_t wrong[] = {0, 1, sizeof options - 1, 1 << 20};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.size = wrong[i];
        IS(connect_with(&options), -EINVAL);
    }
    options = (struct weft_options)WEFT_OPTIONS_INIT;
    options.reserved = 1;
    IS(connect_with(&options), -EINVAL);
}

static void credentials(void)
{
    struct weft_options options = WEFT_OPTIONS_INIT;
    gid_t groups[] = {501, 502};
    char *path = in(dir, "mine"), *open_dir = in(dir, "open");
    struct stat st;
    weft_fs *fs, *user;
    weft_file *file;

    MUST(weft_connect(cluster, NULL, &fs));
    MUST(weft_mkdir(fs, open_dir, 0777));
    MUST(weft_chmod(fs, open_dir, 0777));
    options.flags = WEFT_OPTION_CREDENTIALS | WEFT_OPTION_UMASK;
    options.uid = 500, options.gid = 500, options.groups = groups, options.ngroups = 2;
    options.umask = 027;
    options.client_name = "options.c", options.threads = 1, options.op_timeout_s = 60;
    options.cache_bytes = 1 << 20, options.write_buffer_bytes = 1 << 20;
    MUST(weft_connect(cluster, &options, &user));
    free(path);
    path = in(open_dir, "mine");
    MUST(weft_open(user, path, O_WRONLY | O_CREAT, 0666, &file));
    MUST(weft_close(file));
    MUST(weft_stat(user, path, &st));
    THAT(st.st_uid == 500 && st.st_gid == 500);
    IS(st.st_mode & 07777, 0640);
    IS(weft_chown(user, path, -1, 502), 0);
    IS(weft_chown(user, path, -1, 503), -EPERM);
    MUST(weft_chmod(fs, path, 0));
    IS(weft_open(user, path, O_RDONLY, 0, &file), -EACCES);
    THAT(strstr(weft_strerror_last(), path) != NULL);
    IS(weft_unlink(fs, path), 0);
    IS(weft_rmdir(fs, open_dir), 0);
    MUST(weft_disconnect(user));
    MUST(weft_disconnect(fs));

    options.groups = NULL;
    IS(connect_with(&options), -EFAULT);
    free(path), free(open_dir);
}

/* A close that makes durable, and a timeout that is told. */
static void others(void)
{
    struct weft_options options = WEFT_OPTIONS_INIT;
    char *path = in(dir, "synced");
    weft_fs *fs;
    weft_file *file;

    options.flags = WEFT_OPTION_CLOSE_SYNC | WEFT_OPTION_DIR_SYNC;
    options.op_timeout_s = WEFT_NO_TIMEOUT;
    MUST(weft_connect(cluster, &options, &fs));
    MUST(weft_open(fs, path, O_WRONLY | O_CREAT, 0600, &file));
    IS(weft_pwrite(file, "x", 1, 0), 1);
    IS(weft_close(file), 0);
    IS(weft_unlink(fs, path), 0);
    MUST(weft_disconnect(fs));
    free(path);

    options.flags = 0, options.op_timeout_s = 1;
    /* Nobody listens there. */
    IS(weft_connect("127.0.0.1:1", &options, &fs), -ETIMEDOUT);
    THAT(strstr(weft_strerror_last(), "127.0.0.1:1") != NULL);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    cluster = argv[1], dir = argv[2];
    versions();
    credentials();
    others();
    return verdict();
}
