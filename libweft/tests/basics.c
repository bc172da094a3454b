/* Each call once, with what it answers when it works and when it does not. */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

static weft_fs *fs;
static const char *dir;

static void content(void)
{
    char *path = in(dir, "content"), *other = in(dir, "other"), buf[64] = "";
    weft_file *file, *copy, *reader;

    IS(weft_open(fs, path, O_RDWR, 0, &file), -ENOENT);
    THAT(strstr(weft_strerror_last(), path) != NULL);
    THAT(strstr(weft_strerror_last(), "weft_open") != NULL);
    MUST(weft_open(fs, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0640, &file));
    IS(weft_open(fs, path, O_RDWR | O_CREAT | O_EXCL, 0640, &reader), -EEXIST);
    IS(weft_pwrite(file, "0123456789", 10, 0), 10);
    IS(weft_pread(file, buf, 4, 3), 4);
    THAT(memcmp(buf, "3456", 4) == 0);
    IS(weft_pread(file, buf, sizeof buf, 8), 2);
    IS(weft_pread(file, buf, sizeof buf, 10), 0);
    IS(weft_pread(file, NULL, 0, 0), 0);
    IS(weft_pread(file, NULL, 1, 0), -EFAULT);
    IS(weft_pread(file, buf, 1, -1), -EINVAL);
    IS(weft_pread(NULL, buf, 1, 0), -EINVAL);
    IS(weft_pwrite(file, NULL, 1, 0), -EFAULT);

    char a[3], b[5];
    struct iovec to[] = {{a, 3}, {NULL, 0}, {b, 5}};
    IS(weft_preadv(file, to, 3, 1), 8);
    THAT(memcmp(a, "123", 3) == 0 && memcmp(b, "45678", 5) == 0);
    struct iovec from[] = {{"ab", 2}, {"cde", 3}};
    IS(weft_pwritev(file, from, 2, 9), 5);
    IS(weft_pread(file, buf, sizeof buf, 0), 14);
    THAT(memcmp(buf, "012345678abcde", 14) == 0);
    IS(weft_preadv(file, to, -1, 0), -EINVAL);
    IS(weft_preadv(file, NULL, 1, 0), -EFAULT);
    IS(weft_preadv(file, NULL, 0, 0), 0);

    IS(weft_fsync(file), 0);
    IS(weft_fdatasync(file), 0);
    IS(weft_ftruncate(file, 5), 0);
    IS(weft_pread(file, buf, sizeof buf, 0), 5);
    IS(weft_ftruncate(file, -1), -EINVAL);
    IS(weft_truncate(fs, path, 1 << 20), 0);
    IS(weft_truncate(fs, path, -1), -EINVAL);
    struct stat st;
    IS(weft_fstat(file, &st), 0);
    IS(st.st_size, 1 << 20);
    IS(st.st_mode, S_IFREG | 0640);

    IS(weft_lseek(file, 0, SEEK_DATA), 0);
    THAT(weft_lseek(file, 0, SEEK_HOLE) > 0);
    IS(weft_lseek(file, 1 << 20, SEEK_DATA), -ENXIO);
    IS(weft_lseek(file, 0, SEEK_SET), -EINVAL);
    IS(weft_fallocate(file, 0, 0, 2 << 20), 0);
    IS(weft_fstat(file, &st), 0);
    IS(st.st_size, 2 << 20);
    IS(weft_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 5), 0);
    IS(weft_pread(file, buf, 5, 0), 5);
    THAT(memcmp(buf, "\0\0\0\0\0", 5) == 0);
    IS(weft_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -EOPNOTSUPP);
    IS(weft_fallocate(file, 0, 0, 0), -EINVAL);

    IS(weft_pwrite(file, "share me", 8, 0), 8);
    MUST(weft_open(fs, other, O_WRONLY | O_CREAT, 0600, &copy));
    long long copied = MUST(weft_copy_file_range(file, 0, copy, 0, 8, 0));
    THAT(copied >= 1 && copied <= 8);
    IS(weft_copy_file_range(file, 0, copy, 0, 8, 1), -EINVAL);
    IS(weft_pread(copy, buf, 1, 0), -EBADF);
    IS(weft_copy_file_range(copy, 0, file, 0, 8, 0), -EBADF);

    MUST(weft_open(fs, path, O_RDONLY, 0, &reader));
    IS(weft_pwrite(reader, "x", 1, 0), -EBADF);
    IS(weft_ftruncate(reader, 0), -EINVAL);
    IS(weft_flock(file, LOCK_EX), 0);
    IS(weft_flock(reader, LOCK_SH | LOCK_NB), -EWOULDBLOCK);
    IS(weft_flock(file, LOCK_UN), 0);
    IS(weft_flock(reader, LOCK_SH | LOCK_NB), 0);
    IS(weft_flock(reader, 77), -EINVAL);
    IS(weft_close(reader), 0);
    IS(weft_close(copy), 0);
    IS(weft_close(file), 0);
    IS(weft_close(NULL), -EINVAL);
    IS(weft_unlink(fs, path), 0);
    IS(weft_unlink(fs, other), 0);
    free(path), free(other);
}

/* Locks stand against those of other connections, and go with their file. */
static void locks(const char *cluster)
{
    char *path = in(dir, "locked");
    weft_fs *other;
    weft_file *mine, *theirs;

    MUST(weft_connect(cluster, NULL, &other));
    MUST(weft_open(fs, path, O_RDWR | O_CREAT, 0600, &mine));
    MUST(weft_open(other, path, O_RDWR, 0600, &theirs));
    IS(weft_flock(mine, LOCK_SH), 0);
    IS(weft_flock(theirs, LOCK_SH), 0);
    IS(weft_flock(mine, LOCK_EX | LOCK_NB), -EWOULDBLOCK);
    IS(weft_flock(theirs, LOCK_UN), 0);
    IS(weft_flock(mine, LOCK_EX), 0);
    IS(weft_flock(theirs, LOCK_EX | LOCK_NB), -EWOULDBLOCK);
    IS(weft_close(mine), 0);
    IS(weft_flock(theirs, LOCK_EX), 0);
    IS(weft_close(theirs), 0);
    IS(weft_unlink(fs, path), 0);
    IS(weft_disconnect(other), 0);
    free(path);
}

static void flags(void)
{
    char *path = in(dir, "flags"), *link = in(dir, "link"), buf[16];
    weft_file *file;

    MUST(weft_open(fs, path, O_WRONLY | O_CREAT | O_APPEND | O_SYNC, 0600, &file));
    IS(weft_pwrite(file, "one", 3, 0), 3);
    IS(weft_pwrite(file, "two", 3, 0), 3);
    struct iovec three[] = {{"th", 2}, {"ree", 3}};
    IS(weft_pwritev(file, three, 2, 1), 5);
    IS(weft_close(file), 0);
    MUST(weft_open(fs, path, O_RDONLY | O_NOATIME | O_DIRECT | O_NONBLOCK, 0, &file));
    IS(weft_pread(file, buf, sizeof buf, 0), 11);
    THAT(memcmp(buf, "onetwothree", 11) == 0);
    IS(weft_close(file), 0);
    MUST(weft_open(fs, path, O_RDWR | O_TRUNC, 0, &file));
    IS(weft_pread(file, buf, sizeof buf, 0), 0);
    IS(weft_close(file), 0);

    IS(weft_open(fs, dir, O_RDONLY, 0, &file), -EISDIR);
    IS(weft_open(fs, dir, O_RDONLY | O_DIRECTORY, 0, &file), -EINVAL);
    IS(weft_open(fs, path, O_RDONLY | O_PATH, 0, &file), -EINVAL);
    IS(weft_open(fs, path, O_ACCMODE, 0, &file), -EINVAL);
    IS(weft_open(fs, path, O_RDONLY, 0, NULL), -EFAULT);
    IS(weft_open(fs, NULL, O_RDONLY, 0, &file), -EFAULT);
    IS(weft_open(NULL, path, O_RDONLY, 0, &file), -EINVAL);
    IS(weft_symlink(fs, "flags", link), 0);
    IS(weft_open(fs, link, O_RDONLY | O_NOFOLLOW, 0, &file), -ELOOP);
    MUST(weft_open(fs, link, O_RDONLY, 0, &file));
    IS(weft_close(file), 0);
    IS(weft_unlink(fs, link), 0);
    IS(weft_unlink(fs, path), 0);
    free(path), free(link);
}

static void names(void)
{
    char *a = in(dir, "a"), *b = in(dir, "b"), *sub = in(dir, "sub"), buf[8];
    weft_file *file;
    struct stat st;

    MUST(weft_open(fs, a, O_WRONLY | O_CREAT, 0600, &file));
    IS(weft_close(file), 0);
    IS(weft_link(fs, a, b), 0);
    IS(weft_link(fs, a, b), -EEXIST);
    IS(weft_stat(fs, b, &st), 0);
    IS(st.st_nlink, 2);
    IS(weft_unlink(fs, b), 0);
    IS(weft_mkdir(fs, b, 0755), 0);
    IS(weft_mkdir(fs, b, 0755), -EEXIST);
    IS(weft_stat(fs, b, &st), 0);
    IS(st.st_mode, S_IFDIR | 0755);
    IS(weft_unlink(fs, b), -EISDIR);
    IS(weft_rename(fs, a, b, 0), -EISDIR);
    IS(weft_rename(fs, a, b, RENAME_NOREPLACE), -EEXIST);
    IS(weft_rename(fs, a, b, RENAME_EXCHANGE), 0);
    IS(weft_stat(fs, b, &st), 0);
    THAT(S_ISREG(st.st_mode));
    IS(weft_rename(fs, a, b, 4), -EINVAL);
    IS(weft_rename(fs, b, sub, 0), 0);
    IS(weft_rmdir(fs, sub), -ENOTDIR);
    IS(weft_unlink(fs, sub), 0);
    IS(weft_fsyncdir(fs, dir), 0);
    IS(weft_rmdir(fs, dir), -ENOTEMPTY);
    IS(weft_rmdir(fs, a), 0);

    IS(weft_symlink(fs, "else/where", a), 0);
    IS(weft_lstat(fs, a, &st), 0);
    THAT(S_ISLNK(st.st_mode) && st.st_size == 10);
    IS(weft_stat(fs, a, &st), -ENOENT);
    IS(weft_readlink(fs, a, buf, sizeof buf), 8);
    THAT(memcmp(buf, "else/whe", 8) == 0);
    IS(weft_readlink(fs, a, buf, 0), -EINVAL);
    IS(weft_readlink(fs, dir, buf, sizeof buf), -EINVAL);
    IS(weft_unlink(fs, a), 0);
    IS(weft_unlink(fs, a), -ENOENT);
    IS(weft_mknod(fs, a, S_IFIFO | 0600, 0), 0);
    IS(weft_open(fs, a, O_RDONLY, 0, &file), -EOPNOTSUPP);
    IS(weft_unlink(fs, a), 0);
    IS(weft_mknod(fs, a, S_IFBLK | 0600, makedev(259, 65537)), geteuid() == 0 ? 0 : -EPERM);
    if (geteuid() == 0) {
        IS(weft_stat(fs, a, &st), 0);
        THAT(major(st.st_rdev) == 259 && minor(st.st_rdev) == 65537);
        IS(weft_unlink(fs, a), 0);
    }
    IS(weft_mknod(fs, a, S_IFDIR | 0600, 0), -EINVAL);
    free(a), free(b), free(sub);
}

static void attributes(void)
{
    char *path = in(dir, "attributes"), *link = in(dir, "link"), buf[64];
    weft_file *file;
    struct stat st;

    MUST(weft_open(fs, path, O_WRONLY | O_CREAT, 0600, &file));
    IS(weft_close(file), 0);
    IS(weft_chmod(fs, path, 0400), 0);
    IS(weft_stat(fs, path, &st), 0);
    IS(st.st_mode, S_IFREG | 0400);
    IS(st.st_uid, geteuid());
    IS(weft_access(fs, path, F_OK), 0);
    IS(weft_access(fs, path, R_OK), 0);
    IS(weft_access(fs, path, X_OK), -EACCES);
    IS(weft_access(fs, path, 64), -EINVAL);
    IS(weft_chown(fs, path, (uid_t)-1, (gid_t)-1), 0);
    IS(weft_symlink(fs, "attributes", link), 0);
    if (geteuid() == 0) {
        IS(weft_chown(fs, path, 12, 34), 0);
        IS(weft_lchown(fs, link, 56, (gid_t)-1), 0);
        IS(weft_stat(fs, link, &st), 0);
        THAT(st.st_uid == 12 && st.st_gid == 34);
        IS(weft_lstat(fs, link, &st), 0);
        IS(st.st_uid, 56);
    }
    struct timespec times[] = {{1000, 5}, {-2, 7}};
    IS(weft_utimens(fs, path, times, 0), 0);
    IS(weft_stat(fs, path, &st), 0);
    THAT(st.st_atim.tv_sec == 1000 && st.st_atim.tv_nsec == 5);
    THAT(st.st_mtim.tv_sec == -2 && st.st_mtim.tv_nsec == 7);
    struct timespec some[] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    IS(weft_utimens(fs, path, some, 0), 0);
    IS(weft_stat(fs, path, &st), 0);
    THAT(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec > 1000);
    IS(weft_utimens(fs, link, times, AT_SYMLINK_NOFOLLOW), 0);
    IS(weft_lstat(fs, link, &st), 0);
    IS(st.st_mtim.tv_sec, -2);
    IS(weft_utimens(fs, path, NULL, 0), 0);
    IS(weft_utimens(fs, path, times, 77), -EINVAL);
    struct timespec wrong[] = {{0, 1000000000}, {0, 0}};
    IS(weft_utimens(fs, path, wrong, 0), -EINVAL);

    IS(weft_setxattr(fs, path, "user.color", "blue", 4, 0), 0);
    IS(weft_setxattr(fs, path, "user.color", "red", 3, XATTR_CREATE), -EEXIST);
    IS(weft_setxattr(fs, path, "user.none", "red", 3, XATTR_REPLACE), -ENODATA);
    IS(weft_getxattr(fs, path, "user.color", NULL, 0), 4);
    IS(weft_getxattr(fs, path, "user.color", buf, 3), -ERANGE);
    IS(weft_getxattr(fs, path, "user.color", buf, sizeof buf), 4);
    THAT(memcmp(buf, "blue", 4) == 0);
    IS(weft_getxattr(fs, path, "user.none", buf, sizeof buf), -ENODATA);
    IS(weft_listxattr(fs, path, buf, sizeof buf), 11);
    THAT(memcmp(buf, "user.color", 11) == 0);
    IS(weft_removexattr(fs, path, "user.color"), 0);
    IS(weft_removexattr(fs, path, "user.color"), -ENODATA);
    IS(weft_removexattr(fs, path, NULL), -EFAULT);

    struct statvfs room;
    IS(weft_statvfs(fs, &room), 0);
    THAT(room.f_blocks > 0 && room.f_bfree <= room.f_blocks && room.f_namemax == 255);
    IS(weft_sync(fs), 0);
    IS(weft_unlink(fs, link), 0);
    IS(weft_unlink(fs, path), 0);
    free(path), free(link);
}

enum { FILES = 2500 };

/* Each name once, in a directory of several pages. */
static void directories(void)
{
    char *sub = in(dir, "many"), name[32], seen[FILES] = "";
    struct weft_dirent entry;
    weft_dir *list;
    struct stat st;
    int dots = 0, found = 0, answer;
    uint64_t half = 0;

    IS(weft_opendir(fs, sub, &list), -ENOENT);
    MUST(weft_mkdir(fs, sub, 0700));
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "many/f%d", i);
        char *path = in(dir, name);
        weft_file *file;
        MUST(weft_open(fs, path, O_WRONLY | O_CREAT, 0600, &file));
        MUST(weft_close(file));
        IS(i == 0 ? weft_opendir(fs, path, &list) : -ENOTDIR, -ENOTDIR);
        free(path);
    }
    MUST(weft_opendir(fs, sub, &list));
    while ((answer = weft_readdir(list, &entry)) == 1) {
        if (entry.name[0] == '.') {
            dots++;
            IS(entry.type, DT_DIR);
            IS(weft_stat(fs, entry.name[1] == 0 ? sub : dir, &st), 0);
            IS(entry.ino, st.st_ino);
            continue;
        }
        int i = atoi(entry.name + 1);
        THAT(entry.name[0] == 'f' && i >= 0 && i < FILES && !seen[i]);
        IS(entry.type, DT_REG);
        seen[i] = 1;
        if (++found == FILES / 2)
            half = entry.off;
    }
    IS(answer, 0);
    IS(dots, 2);
    IS(found, FILES);
    IS(weft_seekdir(list, half), 0);
    for (found = 0; weft_readdir(list, &entry) == 1;)
        found++;
    IS(found, FILES - FILES / 2);
    IS(weft_seekdir(list, 0), 0);
    IS(weft_readdir(list, &entry), 1);
    THAT(strcmp(entry.name, ".") == 0);
    IS(weft_readdir(list, NULL), -EFAULT);
    IS(weft_closedir(list), 0);

    /* Whole files together. */
    static char buf[FILES + 1][4], paths[FILES + 1][300];
    static struct weft_read reads[FILES + 1];
    weft_file *file;
    snprintf(paths[0], sizeof paths[0], "%s/f7", sub);
    MUST(weft_open(fs, paths[0], O_WRONLY, 0, &file));
    IS(weft_pwrite(file, "seven", 5, 0), 5);
    MUST(weft_close(file));
    for (int i = 0; i <= FILES; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/f%d", sub, i);
        reads[i] = (struct weft_read){paths[i], 0, buf[i], sizeof buf[i], 77};
    }
    IS(weft_read_many(fs, reads, FILES + 1), FILES);
    for (int i = 0; i <= FILES; i++)
        IS(reads[i].result, i == 7 ? 4 : i == FILES ? -ENOENT : 0);
    THAT(memcmp(buf[7], "seve", 4) == 0);
    IS(weft_read_many(fs, NULL, 1), -EFAULT);
    IS(weft_read_many(fs, NULL, 0), 0);

    for (int i = 0; i < FILES; i++)
        IS(weft_unlink(fs, paths[i]), 0);
    IS(weft_rmdir(fs, sub), 0);
    free(sub);
}

/* More than one page. */
enum { MOVED = 1100 };

/* Names that are moved while they are listed come once, and the listing ends. */
static void moved_while_listed(void)
{
    char *sub = in(dir, "moved"), name[32], seen[MOVED] = "";
    struct weft_dirent entry;
    weft_dir *list;
    int found = 0, answer;

    MUST(weft_mkdir(fs, sub, 0700));
    for (int i = 0; i < MOVED; i++) {
        snprintf(name, sizeof name, "f%d", i);
        char *path = in(sub, name);
        weft_file *file;
        MUST(weft_open(fs, path, O_WRONLY | O_CREAT, 0600, &file));
        MUST(weft_close(file));
        free(path);
    }
    MUST(weft_opendir(fs, sub, &list));
    while ((answer = weft_readdir(list, &entry)) == 1 && found <= MOVED) {
        if (entry.name[0] == '.')
            continue;
        found++;
        int i = atoi(entry.name + 1);
        THAT(entry.name[0] == 'f' && i >= 0 && i < MOVED && !seen[i]);
        if (entry.name[0] != 'f' || i < 0 || i >= MOVED)
            continue;
        seen[i] = 1;
        snprintf(name, sizeof name, "m%d", i);
        char *from = in(sub, entry.name), *to = in(sub, name);
        IS(weft_rename(fs, from, to, 0), 0);
        free(from), free(to);
    }
    IS(answer, 0);
    IS(found, MOVED);

    /* From the start there is what was made since. */
    IS(weft_seekdir(list, 0), 0);
    for (found = 0; (answer = weft_readdir(list, &entry)) == 1 && found <= MOVED;)
        found += entry.name[0] == 'm';
    IS(answer, 0);
    IS(found, MOVED);
    IS(weft_closedir(list), 0);
    for (int i = 0; i < MOVED; i++) {
        snprintf(name, sizeof name, "m%d", i);
        char *path = in(sub, name);
        IS(weft_unlink(fs, path), 0);
        free(path);
    }
    IS(weft_rmdir(fs, sub), 0);
    free(sub);
}

/* What is used after the end of the connection. */
static void disconnected(void)
{
    char *path = in(dir, "last"), buf[8];
    weft_file *file;
    weft_dir *list;
    weft_ring *ring;
    struct weft_cqe cqe;
    struct weft_dirent entry;

    MUST(weft_open(fs, path, O_RDWR | O_CREAT, 0600, &file));
    MUST(weft_opendir(fs, dir, &list));
    MUST(weft_ring_create(fs, 4, &ring));
    IS(weft_pwrite(file, "durable", 7, 0), 7);
    IS(weft_unlink(fs, path), 0);
    IS(weft_disconnect(fs), 0);
    IS(weft_pread(file, buf, sizeof buf, 0), -ENOTCONN);
    IS(weft_readdir(list, &entry), 1);
    IS(weft_readdir(list, &entry), -ENOTCONN);
    IS(weft_ring_prep_pread(ring, file, buf, sizeof buf, 0, 5), 0);
    IS(weft_ring_submit(ring), 1);
    IS(weft_ring_reap(ring, &cqe, 1, 1, -1), 1);
    THAT(cqe.user_data == 5 && cqe.res == -ENOTCONN);
    IS(weft_ring_destroy(ring), 0);
    IS(weft_closedir(list), -ENOTCONN);
    IS(weft_close(file), -ENOTCONN);
    IS(weft_disconnect(NULL), -EINVAL);
    free(path);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    dir = argv[2];
    struct weft_options options = WEFT_OPTIONS_INIT;
    options.flags = WEFT_OPTION_UMASK;
    IS(strcmp(weft_strerror_last(), ""), 0);
    IS(weft_connect(argv[1], &options, NULL), -EFAULT);
    IS(weft_connect("nowhere", &options, &fs), -EINVAL);
    THAT(strstr(weft_strerror_last(), "nowhere") != NULL);
    MUST(weft_connect(argv[1], &options, &fs));
    content();
    locks(argv[1]);
    flags();
    names();
    attributes();
    directories();
    moved_while_listed();
    disconnected();
    return verdict();
}
