/*
 * The native library of Weft, a distributed parallel filesystem: see weft(3).
 *
 * Generated from libweft/src by cbindgen: do not change it by hand.
 *
 * Calls answer 0 or a count, or a negative errno; weft_strerror_last() then says what failed, where
 * and what to do. Objects that are NULL are answered -EINVAL, other pointers that are NULL and
 * should not be -EFAULT. Paths are relative to the root of the filesystem. No call is interrupted
 * by a signal, and none may be made from a signal handler. After fork(2) what was inherited answers
 * -ENOTCONN in the child, which connects anew.
 */

#ifndef WEFT_H
#define WEFT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/** Version of this header: the library of the same number is libweft.so.0. */
#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

/** For struct weft_options: every default. */
#define WEFT_OPTIONS_INIT { sizeof(struct weft_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Of <fcntl.h> and <stdio.h>, where only _GNU_SOURCE has them: flags of weft_rename. */
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE (1 << 0)
#endif
#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE (1 << 1)
#endif


/**
 * Act as uid, gid and groups, and not as this process.
 */
#define WEFT_OPTION_CREDENTIALS 1

/**
 * Take umask, and not that of this process, off the modes of what is made.
 */
#define WEFT_OPTION_UMASK 2

/**
 * weft_close makes durable what was written.
 */
#define WEFT_OPTION_CLOSE_SYNC 4

/**
 * A name that is made, moved or taken away is durable before that is answered.
 */
#define WEFT_OPTION_DIR_SYNC 8

/**
 * For op_timeout_s: operations wait for the cluster, however long.
 */
#define WEFT_NO_TIMEOUT UINT32_MAX

/**
 * A directory that is being listed. Threads that share it get each entry once.
 */
typedef struct weft_dir weft_dir;

/**
 * An open file. Any number of threads may use it. It has no position: reads and writes say where.
 */
typedef struct weft_file weft_file;

/**
 * A filesystem that this process is connected to, with the rights of a user. Any number of threads
 * may use it.
 */
typedef struct weft_fs weft_fs;

/**
 * Memory of a GPU that is registered. Any number of threads may use it.
 */
typedef struct weft_gpu_memory weft_gpu_memory;

/**
 * A ring of entries and completions. Any number of threads may use it.
 */
typedef struct weft_ring weft_ring;

/**
 * How to connect. Begin with WEFT_OPTIONS_INIT and set what is to differ: 0 is the default of each
 * field. A program that was compiled with an older header gives a shorter one, and the rest is 0;
 * a longer one is refused (-E2BIG) if it sets what this library does not know.
 */
typedef struct weft_options {
    /**
     * sizeof(struct weft_options): which version it is.
     */
    size_t size;
    /**
     * WEFT_OPTION_...
     */
    uint64_t flags;
    /**
     * With WEFT_OPTION_CREDENTIALS: the user; 0 is root.
     */
    uid_t uid;
    /**
     * With WEFT_OPTION_CREDENTIALS: the group.
     */
    gid_t gid;
    /**
     * With WEFT_OPTION_CREDENTIALS: supplementary groups.
     */
    const gid_t *groups;
    /**
     * How many groups there are, at most 65536.
     */
    size_t ngroups;
    /**
     * With WEFT_OPTION_UMASK: bits that new files do not get.
     */
    uint32_t umask;
    /**
     * Threads that do the work. Default: one for each core, at most 8.
     */
    uint32_t threads;
    /**
     * Most bytes that are read ahead. Default: 256 MiB.
     */
    uint64_t cache_bytes;
    /**
     * Most bytes that were written and are not durable yet. Default: 256 MiB.
     */
    uint64_t write_buffer_bytes;
    /**
     * Seconds after which an operation that cannot be done fails. Default: 300.
     */
    uint32_t op_timeout_s;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * What the list of sessions shows. Default: the host, the name of the program and its
     * number. Servers share what they have among those that differ before the first colon.
     */
    const char *client_name;
} weft_options;

/**
 * What to read of one file.
 */
typedef struct weft_read {
    /**
     * Where it is.
     */
    const char *path;
    /**
     * First byte.
     */
    uint64_t off;
    /**
     * Where the bytes go.
     */
    void *buf;
    /**
     * How many there may be.
     */
    size_t len;
    /**
     * Set by the call: bytes that were read, fewer than len only at the end of the file; or a
     * negative errno.
     */
    ssize_t result;
} weft_read;

/**
 * A completion.
 */
typedef struct weft_cqe {
    /**
     * What the entry was prepared with.
     */
    uint64_t user_data;
    /**
     * What the call of the same kind answers: bytes or 0, or a negative errno.
     */
    int64_t res;
} weft_cqe;

/**
 * What to read of one file, into registered memory of a GPU.
 */
typedef struct weft_gpu_read {
    /**
     * Where it is.
     */
    const char *path;
    /**
     * First byte.
     */
    uint64_t off;
    /**
     * Where the bytes go.
     */
    struct weft_gpu_memory *memory;
    /**
     * The first of them there.
     */
    size_t memory_off;
    /**
     * How many there may be.
     */
    size_t len;
    /**
     * Set by the call: bytes that were read, fewer than len only at the end of the file; or a
     * negative errno.
     */
    ssize_t result;
} weft_gpu_read;

/**
 * One name in a directory.
 */
typedef struct weft_dirent {
    /**
     * The inode that it leads to.
     */
    uint64_t ino;
    /**
     * Where it is: weft_seekdir goes on after it.
     */
    uint64_t off;
    /**
     * DT_REG, DT_DIR, DT_LNK, DT_FIFO, DT_SOCK, DT_CHR or DT_BLK of dirent.h.
     */
    unsigned char type;
    /**
     * The name, with a NUL at its end.
     */
    char name[256];
} weft_dirent;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Connects to the cluster with these metadata servers, "HOST:PORT[,HOST:PORT...]"; options may be
 * NULL. Waits for a cluster that is away, at most as long as one operation may take.
 */
int weft_connect(const char *cluster, const struct weft_options *options, struct weft_fs **fs);

/**
 * Makes all that was written durable, disconnects and frees fs. It does so whatever it answers:
 * the first error of what could not be made durable, of which nobody was told. Files, directories
 * and rings that are open still answer -ENOTCONN from now on and are closed, each by its own call,
 * before or after.
 */
int weft_disconnect(struct weft_fs *fs);

/**
 * What the last call of this thread that failed has to say: what failed, where, and what to do.
 *
 * Never NULL; "" if none has failed. It stays until the next call of this thread fails. After
 * weft_ring_reap and weft_read_many it tells of the last entry that failed.
 */
const char *weft_strerror_last(void);

/**
 * Opens a file, or makes it (O_CREAT), with mode less the umask. flags are those of open(2):
 * access mode, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_NOFOLLOW and O_NOATIME.
 * O_CLOEXEC, O_LARGEFILE, O_NOCTTY, O_NONBLOCK and O_DIRECT are taken and say nothing. All others,
 * O_DIRECTORY, O_PATH and O_TMPFILE among them, are refused (-EINVAL); directories are opened by
 * weft_opendir.
 */
int weft_open(struct weft_fs *fs,
              const char *path,
              int flags,
              mode_t mode,
              struct weft_file **file);

/**
 * Closes a file and frees it, whatever it answers: the first error of what was written and nobody
 * was told of. What was written is visible to all by then, and durable within seconds by itself;
 * weft_fsync says when. Its lock of weft_flock goes with it. A second close is a use of freed
 * memory.
 */
int weft_close(struct weft_file *file);

/**
 * Reads up to len bytes at off; fewer only at the end of the file.
 */
ssize_t weft_pread(struct weft_file *file, void *buf, size_t len, off_t off);

/**
 * Writes len bytes at off, or at the end of the file if it was opened with O_APPEND. It answers
 * len or an error, after which any part of them may have been written.
 */
ssize_t weft_pwrite(struct weft_file *file, const void *buf, size_t len, off_t off);

/**
 * weft_pread, into count buffers, 0 to 1024, one after the other.
 */
ssize_t weft_preadv(struct weft_file *file, const struct iovec *iov, int iovcnt, off_t off);

/**
 * weft_pwrite, from count buffers, 0 to 1024, one after the other.
 */
ssize_t weft_pwritev(struct weft_file *file, const struct iovec *iov, int iovcnt, off_t off);

/**
 * What was written to the file, by whatever descriptor of this connection, is durable and visible
 * to all. Answers an error of earlier writes that this file was not told of yet.
 */
int weft_fsync(struct weft_file *file);

/**
 * The same as weft_fsync: size and content become durable together.
 */
int weft_fdatasync(struct weft_file *file);

/**
 * Cuts the file, or extends it by a hole, to length bytes.
 */
int weft_ftruncate(struct weft_file *file, off_t length);

/**
 * Modes of fallocate(2): 0, KEEP_SIZE, PUNCH_HOLE with KEEP_SIZE, ZERO_RANGE with or without it;
 * others are refused (-EOPNOTSUPP). Room is looked for and not set aside.
 */
int weft_fallocate(struct weft_file *file, int mode, off_t off, off_t len);

/**
 * The first offset from off on where there is data (SEEK_DATA) or a hole (SEEK_HOLE); -ENXIO
 * behind the last one. Files have no position: other values of whence are refused (-EINVAL).
 */
off_t weft_lseek(struct weft_file *file, off_t off, int whence);

/**
 * Operations of flock(2): LOCK_SH, LOCK_EX, LOCK_UN, and LOCK_NB (-EWOULDBLOCK). The lock belongs
 * to this open file, and stands against those of mounts, too. No signal ends the wait.
 */
int weft_flock(struct weft_file *file, int operation);

/**
 * Copies up to len bytes from one open file to another, or within one, and moves no bytes where
 * they can share them. Answers how many, which may be fewer; 0 at the end of the source. flags: 0.
 */
ssize_t weft_copy_file_range(struct weft_file *from,
                             off_t from_off,
                             struct weft_file *to,
                             off_t to_off,
                             size_t len,
                             unsigned int flags);

/**
 * Opens, reads and closes n files, many at a time and with few requests: what a loader of samples
 * does. Answers how many of them were read; each entry has a result of its own. On an error of the
 * call itself none has.
 */
int weft_read_many(struct weft_fs *fs, struct weft_read *reads, size_t n);

/**
 * Makes a ring with places for so many entries, 1 to 65536, each of which is taken from when it is
 * prepared until its completion is reaped. Files of the same connection may be used with it.
 */
int weft_ring_create(struct weft_fs *fs, unsigned int entries, struct weft_ring **ring);

/**
 * A descriptor that can be read while completions wait, for poll(2) and its kin. It belongs to the
 * ring: do not close it; weft_ring_reap clears it, and it need not be read.
 */
int weft_ring_eventfd(struct weft_ring *ring);

/**
 * Ends a ring and frees it: entries that have not begun are never done, those that have are waited
 * for, and their results are lost unless they were reaped. No memory of theirs is touched after
 * that.
 */
int weft_ring_destroy(struct weft_ring *ring);

/**
 * Registers 1 to 1024 buffers, which entries name by index. They stay as they are until they are
 * unregistered or the ring is destroyed. -EBUSY if there are some already, or while entries are
 * under way. On TCP this saves nothing; networks that move bytes by themselves prepare them here.
 */
int weft_ring_register_buffers(struct weft_ring *ring, const struct iovec *iov, int n);

/**
 * Forgets the registered buffers. -EBUSY while entries are under way, -ENXIO if there are none.
 */
int weft_ring_unregister_buffers(struct weft_ring *ring);

/**
 * Prepares weft_pread. The buffer is the ring's until the completion is reaped. -EAGAIN if all
 * places are taken.
 */
int weft_ring_prep_pread(struct weft_ring *ring,
                         struct weft_file *file,
                         void *buf,
                         size_t len,
                         off_t off,
                         uint64_t user_data);

/**
 * Prepares weft_pwrite, as weft_ring_prep_pread does.
 */
int weft_ring_prep_pwrite(struct weft_ring *ring,
                          struct weft_file *file,
                          const void *buf,
                          size_t len,
                          off_t off,
                          uint64_t user_data);

/**
 * Prepares weft_preadv. The list itself may go at once, its buffers are the ring's until the
 * completion is reaped.
 */
int weft_ring_prep_preadv(struct weft_ring *ring,
                          struct weft_file *file,
                          const struct iovec *iov,
                          int iovcnt,
                          off_t off,
                          uint64_t user_data);

/**
 * Prepares weft_pwritev, as weft_ring_prep_preadv does.
 */
int weft_ring_prep_pwritev(struct weft_ring *ring,
                           struct weft_file *file,
                           const struct iovec *iov,
                           int iovcnt,
                           off_t off,
                           uint64_t user_data);

/**
 * Prepares weft_pread into len bytes from buf_off on of the registered buffer with this index;
 * -EFAULT if they are not within it, or there is none.
 */
int weft_ring_prep_pread_fixed(struct weft_ring *ring,
                               struct weft_file *file,
                               unsigned int buf_index,
                               size_t buf_off,
                               size_t len,
                               off_t off,
                               uint64_t user_data);

/**
 * Prepares weft_pwrite from a registered buffer, as weft_ring_prep_pread_fixed does.
 */
int weft_ring_prep_pwrite_fixed(struct weft_ring *ring,
                                struct weft_file *file,
                                unsigned int buf_index,
                                size_t buf_off,
                                size_t len,
                                off_t off,
                                uint64_t user_data);

/**
 * Prepares weft_fsync. It covers the writes whose completions were reaped before it is submitted.
 */
int weft_ring_prep_fsync(struct weft_ring *ring, struct weft_file *file, uint64_t user_data);

/**
 * Hands over all that was prepared. Answers how many entries those were. They are done in any
 * order, also beside one another: an fsync covers the writes whose completions were reaped before.
 */
int weft_ring_submit(struct weft_ring *ring);

/**
 * Puts up to max completions into cqes, and answers how many. Waits until there are min of them,
 * or as many as there will be by what was submitted, or timeout_ms are over: 0 is not to wait, -1
 * to wait for ever.
 */
int weft_ring_reap(struct weft_ring *ring,
                   struct weft_cqe *cqes,
                   unsigned int max,
                   unsigned int min,
                   int timeout_ms);

/**
 * Cancels what was submitted with this user_data and has not begun: it completes with -ECANCELED.
 * Answers how many entries those were; -EALREADY if all of them have begun, which then go on to
 * their end and complete with what became of them; -ENOENT if none is under way.
 */
int weft_ring_cancel(struct weft_ring *ring, uint64_t user_data);

/**
 * What cuFileHandleRegister takes as fs_ops of a handle of type CU_FILE_HANDLE_TYPE_USERSPACE_FS
 * whose handle.handle is a weft_file: a const CUfileFSOps_t. A libcufile that refuses such handles
 * says so there; weft_gpu_pread and weft_gpu_pwrite need none.
 */
const void *weft_cufile_ops(void);

/**
 * Registers len bytes of memory of a GPU, by their address there (CUdeviceptr), to read into and
 * write from. It must stay until it is unregistered. -EOPNOTSUPP without a CUDA driver, -EINVAL if
 * it is not memory of one GPU.
 */
int weft_gpu_register(void *address, size_t len, struct weft_gpu_memory **memory);

/**
 * Forgets memory of a GPU, and frees what registering it made: no call may be using it. When this
 * returns nothing is written to the memory any more.
 */
int weft_gpu_unregister(struct weft_gpu_memory *memory);

/**
 * How bytes come to registered memory: "pinned host memory", which the GPU's driver reads by
 * itself, or "pageable host memory", which it copies once more; "direct", where network cards have
 * written it, as WEFT_GPU_DIRECT=1 asks for. The string stays.
 */
const char *weft_gpu_way(const struct weft_gpu_memory *memory);

/**
 * weft_pread, into len bytes from memory_off on of registered memory; -EFAULT if they are not
 * within it. It begins after what stream was asked for before: a CUstream, or NULL for the legacy
 * default stream; programs that are compiled for a default stream of each thread pass
 * CU_STREAM_PER_THREAD. When it has returned, all work that is asked for after it finds the bytes.
 */
ssize_t weft_gpu_pread(struct weft_file *file,
                       struct weft_gpu_memory *memory,
                       size_t memory_off,
                       size_t len,
                       off_t off,
                       void *stream);

/**
 * weft_pwrite, from len bytes from memory_off on of registered memory, as weft_gpu_pread reads.
 */
ssize_t weft_gpu_pwrite(struct weft_file *file,
                        struct weft_gpu_memory *memory,
                        size_t memory_off,
                        size_t len,
                        off_t off,
                        void *stream);

/**
 * weft_read_many, into registered memory of GPUs; stream is that of weft_gpu_pread.
 */
int weft_gpu_read_many(struct weft_fs *fs, struct weft_gpu_read *reads, size_t n, void *stream);

/**
 * Attributes of what a path leads to. st_dev is 0.
 */
int weft_stat(struct weft_fs *fs, const char *path, struct stat *buf);

/**
 * weft_stat, of a symbolic link itself.
 */
int weft_lstat(struct weft_fs *fs, const char *path, struct stat *buf);

/**
 * weft_stat, of an open file.
 */
int weft_fstat(struct weft_file *file, struct stat *buf);

/**
 * Room in the filesystem.
 */
int weft_statvfs(struct weft_fs *fs, struct statvfs *buf);

/**
 * Whether the user of this connection may do mode: F_OK, or R_OK, W_OK and X_OK; -EACCES.
 */
int weft_access(struct weft_fs *fs, const char *path, int mode);

/**
 * Sets permission bits with set-id bits and sticky.
 */
int weft_chmod(struct weft_fs *fs, const char *path, mode_t mode);

/**
 * Sets owner and group; (uid_t)-1 or (gid_t)-1 stays.
 */
int weft_chown(struct weft_fs *fs, const char *path, uid_t uid, gid_t gid);

/**
 * weft_chown, of a symbolic link itself.
 */
int weft_lchown(struct weft_fs *fs, const char *path, uid_t uid, gid_t gid);

/**
 * Cuts a file, or extends it by a hole, to length bytes.
 */
int weft_truncate(struct weft_fs *fs, const char *path, off_t length);

/**
 * Sets the times of access and change, times[0] and times[1], as utimensat(2) does: UTIME_NOW and
 * UTIME_OMIT are known, NULL is both now. flags: 0 or AT_SYMLINK_NOFOLLOW.
 */
int weft_utimens(struct weft_fs *fs, const char *path, const struct timespec *times, int flags);

/**
 * Makes a directory, with mode less the umask.
 */
int weft_mkdir(struct weft_fs *fs, const char *path, mode_t mode);

/**
 * Makes a file, pipe, socket or, as root, a device, with mode less the umask.
 */
int weft_mknod(struct weft_fs *fs, const char *path, mode_t mode, dev_t dev);

/**
 * Takes away a name of what is no directory. Files that are open stay until they are closed.
 */
int weft_unlink(struct weft_fs *fs, const char *path);

/**
 * Removes a directory that is empty.
 */
int weft_rmdir(struct weft_fs *fs, const char *path);

/**
 * Moves a name in one step, over another one if that is there. flags are those of renameat2(2): 0,
 * RENAME_NOREPLACE or RENAME_EXCHANGE.
 */
int weft_rename(struct weft_fs *fs, const char *from, const char *to, unsigned int flags);

/**
 * Gives a file one more name; a symbolic link is not followed.
 */
int weft_link(struct weft_fs *fs, const char *from, const char *to);

/**
 * Makes a symbolic link at path that leads to target.
 */
int weft_symlink(struct weft_fs *fs, const char *target, const char *path);

/**
 * Where a symbolic link leads. Answers how many bytes it put into buf: no more than size, and no
 * NUL after them.
 */
ssize_t weft_readlink(struct weft_fs *fs, const char *path, char *buf, size_t size);

/**
 * All that was written and changed by this connection is durable.
 */
int weft_sync(struct weft_fs *fs);

/**
 * The names that were made, moved and taken away in a directory are durable, as fsync(2) of a
 * directory has it.
 */
int weft_fsyncdir(struct weft_fs *fs, const char *path);

/**
 * The value of an extended attribute. Answers its length, with a size of 0 without touching buf;
 * -ERANGE if it does not fit, -ENODATA if there is none.
 */
ssize_t weft_getxattr(struct weft_fs *fs,
                      const char *path,
                      const char *name,
                      void *buf,
                      size_t size);

/**
 * Names of extended attributes, a NUL after each. Answers their length, as weft_getxattr does.
 */
ssize_t weft_listxattr(struct weft_fs *fs, const char *path, char *buf, size_t size);

/**
 * Sets an extended attribute. flags are those of setxattr(2): 0, XATTR_CREATE or XATTR_REPLACE.
 */
int weft_setxattr(struct weft_fs *fs,
                  const char *path,
                  const char *name,
                  const void *value,
                  size_t size,
                  int flags);

/**
 * Removes an extended attribute.
 */
int weft_removexattr(struct weft_fs *fs, const char *path, const char *name);

/**
 * Opens a directory to list it. Until weft_closedir it outlives its removal, as an empty one.
 */
int weft_opendir(struct weft_fs *fs, const char *path, struct weft_dir **dir);

/**
 * Answers 1 and the next name, "." and ".." among them, or 0 when there is no more. Names that are
 * made or taken away meanwhile may be given or not; all others are, each once.
 */
int weft_readdir(struct weft_dir *dir, struct weft_dirent *entry);

/**
 * The next entry comes after that which had this off; 0: from the start.
 */
int weft_seekdir(struct weft_dir *dir, uint64_t off);

/**
 * Ends the listing and frees dir, whatever it answers.
 */
int weft_closedir(struct weft_dir *dir);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WEFT_H */
