/* Files in the memory of a GPU: of a driver that is loaded as programs load it, or of none. */

#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>

static int (*cu_init)(unsigned);
static int (*retain)(void **, int);
static int (*push)(void *);
static int (*alloc)(unsigned long long *, size_t);
static int (*release)(unsigned long long);
static int (*put)(unsigned long long, const void *, size_t);
static int (*get)(void *, unsigned long long, size_t);

/* As cufile.h has it. */
struct ops {
    const char *(*fs_type)(const void *);
    int (*devices)(const void *, void **);
    int (*priority)(const void *, char *, size_t, off_t, const void *);
    ssize_t (*read)(const void *, char *, size_t, off_t, const void *);
    ssize_t (*write)(const void *, const char *, size_t, off_t, const void *);
};

static void load(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        printf("%s\n", dlerror());
        exit(1);
    }
    *(void **)&cu_init = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&push = dlsym(driver, "cuCtxPushCurrent_v2");
    *(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&release = dlsym(driver, "cuMemFree_v2");
    *(void **)&put = dlsym(driver, "cuMemcpyHtoD_v2");
    *(void **)&get = dlsym(driver, "cuMemcpyDtoH_v2");
    void *context = NULL;
    THAT(cu_init(0) == 0 && retain(&context, 0) == 0 && push(context) == 0);
}

enum { LEN = 5000000 };
static unsigned char content[LEN], found[LEN];

static void without(void)
{
    weft_gpu_memory *memory = NULL;
    THAT(weft_gpu_register(content, LEN, &memory) == -EOPNOTSUPP);
    THAT(strstr(weft_strerror_last(), "CUDA") != NULL);
    THAT(weft_gpu_unregister(NULL) == -EINVAL);
}

/* What cuFile is given, with memory of the host and of a GPU. */
static void cufile(weft_file *file, unsigned long long at)
{
    const struct ops *ops = weft_cufile_ops();
    THAT(strcmp(ops->fs_type(file), "weft") == 0);
    void *hosts = &hosts;
    THAT(ops->devices(file, &hosts) == 0 && hosts == NULL);
    THAT(ops->priority(file, NULL, 0, 0, NULL) == -1);
    memset(found, 0, LEN);
    THAT(ops->read(file, (char *)found, LEN, 0, NULL) == LEN);
    THAT(memcmp(found, content, LEN) == 0);
    content[7] ^= 1;
    THAT(ops->write(file, (const char *)content, 100, 0, NULL) == 100);
    THAT(ops->read(file, (char *)(uintptr_t)at, LEN, 0, NULL) == LEN);
    THAT(get(found, at, LEN) == 0 && memcmp(found, content, LEN) == 0);
    content[9] ^= 1;
    THAT(put(at, content, 100) == 0);
    THAT(ops->write(file, (const char *)(uintptr_t)at, 100, 0, NULL) == 100);
    THAT(weft_pread(file, found, 100, 0) == 100 && memcmp(found, content, 100) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    for (size_t i = 0; i < LEN; i++)
        content[i] = (unsigned char)(i * 2654435761u >> 13);
    if (strcmp(argv[3], "without") == 0) {
        without();
        return verdict();
    }
    load();
    weft_fs *fs = NULL;
    MUST(weft_connect(argv[1], NULL, &fs));
    char path[4096];
    snprintf(path, sizeof(path), "%s/gpu", argv[2]);
    weft_file *file = NULL;
    MUST(weft_open(fs, path, O_RDWR | O_CREAT, 0644, &file));

    unsigned long long at = 0;
    weft_gpu_memory *memory = NULL;
    THAT(alloc(&at, LEN) == 0);
    THAT(weft_gpu_register(content, LEN, &memory) == -EINVAL);
    THAT(weft_gpu_register((void *)(uintptr_t)at, LEN + 1, &memory) == -EINVAL);
    THAT(weft_gpu_register((void *)(uintptr_t)at, LEN, NULL) == -EFAULT);
    MUST(weft_gpu_register((void *)(uintptr_t)at, LEN, &memory));
    THAT(strcmp(weft_gpu_way(memory), "pinned host memory") == 0);

    THAT(put(at, content, LEN) == 0);
    THAT(weft_gpu_pwrite(file, memory, 0, LEN, 0, NULL) == LEN);
    THAT(put(at, found, LEN) == 0);
    THAT(weft_gpu_pread(file, memory, 10, LEN - 10, 5, NULL) == LEN - 10);
    THAT(get(found, at, LEN) == 0);
    THAT(memcmp(found + 10, content + 5, LEN - 10) == 0);
    THAT(weft_gpu_pread(file, memory, 0, 100, LEN - 30, NULL) == 30);
    THAT(weft_gpu_pread(file, memory, LEN, 1, 0, NULL) == -EFAULT);
    THAT(weft_gpu_pread(file, memory, 0, 1, -1, NULL) == -EINVAL);
    THAT(weft_gpu_pread(file, NULL, 0, 1, 0, NULL) == -EINVAL);

    struct weft_gpu_read reads[2] = {
        {path, 100, memory, 0, 1000, 0},
        {"/is/not/there", 0, memory, 1000, 1000, 0},
    };
    THAT(weft_gpu_read_many(fs, reads, 2, NULL) == 1);
    THAT(reads[0].result == 1000 && reads[1].result == -ENOENT);
    THAT(get(found, at, 1000) == 0 && memcmp(found, content + 100, 1000) == 0);

    cufile(file, at);
    THAT(weft_gpu_unregister(memory) == 0);
    THAT(release(at) == 0);
    THAT(weft_close(file) == 0);
    THAT(weft_disconnect(fs) == 0);
    return verdict();
}
