/* What the test programs share: each is run as PROGRAM CLUSTER DIRECTORY, where the directory is an
 * empty one of its own within the filesystem, and ends with 0 if all was as it should be. */
#ifndef CHECK_H
#define CHECK_H

#include <weft.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures;

/* What a call answered is what it had to. */
#define IS(call, want) check_is(#call, (long long)(call), (long long)(want), __FILE__, __LINE__)
/* A call succeeded, or the program ends: what follows needs it. */
#define MUST(call) check_must(#call, (long long)(call), __FILE__, __LINE__)
#define THAT(what) check_that(#what, !!(what), __FILE__, __LINE__)

static inline void check_is(const char *call, long long is, long long want, const char *file, int line)
{
    if (is == want)
        return;
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    printf("%s:%d: %s is %lld and not %lld (%s)\n", file, line, call, is, want, weft_strerror_last());
}

static inline long long check_must(const char *call, long long is, const char *file, int line)
{
    if (is >= 0)
        return is;
    printf("%s:%d: %s failed with %lld: %s\n", file, line, call, is, weft_strerror_last());
    /* Not exit(3): what is tested may be what it does. */
    fflush(NULL);
    _Exit(1);
}

static inline void check_that(const char *what, int is, const char *file, int line)
{
    if (is)
        return;
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    printf("%s:%d: not so: %s\n", file, line, what);
}

/* A path in the directory of the program; free it. */
static inline char *in(const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = malloc(size);
    if (path == NULL)
        abort();
    snprintf(path, size, "%s/%s", dir, name);
    return path;
}

static inline int verdict(void)
{
    if (failures != 0)
        printf("%d checks failed\n", failures);
    return failures != 0;
}

#endif
