/* Preloaded into a process, makes one chosen call on the files of one folder fail, or all from the chosen one on.
 *
 * $FAULT_DIR: the folder, absolute. The process chooses through fault_arm() and asks fault_seen() how many calls of
 * that kind there were: when there were fewer than the chosen number, the fault never happened.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { NONE, WRITE, SYNC, TRUNCATE, OPEN, READ };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int armed_kind, armed_error, armed_persistent;
static long armed_at, seen;
static const char *folder;
static size_t folder_len;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("FAULT_DIR");
    folder_len = folder ? strlen(folder) : 0;
}

void fault_arm(int kind, long at, int error, int persistent) {
    pthread_mutex_lock(&lock);
    armed_kind = kind, armed_at = at, armed_error = error, armed_persistent = persistent, seen = 0;
    pthread_mutex_unlock(&lock);
}

long fault_seen(void) { return seen; }

static int fails(int kind, const char *path) {
    if (kind != armed_kind || !folder || strncmp(path, folder, folder_len)) return 0;
    pthread_mutex_lock(&lock);
    int hit = kind == armed_kind && (++seen == armed_at || (armed_persistent && seen > armed_at));
    if (hit) errno = armed_error;
    pthread_mutex_unlock(&lock);
    return hit;
}

static int fd_fails(int kind, int fd) {
    char link[64], path[4096];
    if (kind != armed_kind) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)

#define MOVE(call, kind, data_type) \
    ssize_t call(int fd, data_type data, size_t len, off64_t offset) { \
        REAL(ssize_t, call, int, data_type, size_t, off64_t); \
        return fd_fails(kind, fd) ? -1 : real(fd, data, len, offset); \
    }
MOVE(pwrite, WRITE, const void *)
MOVE(pwrite64, WRITE, const void *)
MOVE(pread, READ, void *)
MOVE(pread64, READ, void *)

#define SYNCS(call) int call(int fd) { REAL(int, call, int); return fd_fails(SYNC, fd) ? -1 : real(fd); }
SYNCS(fsync)
SYNCS(fdatasync)

#define CUTS(call) \
    int call(int fd, off64_t length) { \
        REAL(int, call, int, off64_t); \
        return fd_fails(TRUNCATE, fd) ? -1 : real(fd, length); \
    }
CUTS(ftruncate)
CUTS(ftruncate64)

#define OPENS(call) \
    int call(const char *path, int flags, ...) { \
        REAL(int, call, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return fails(OPEN, path) ? -1 : real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
