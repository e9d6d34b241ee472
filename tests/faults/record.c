/* Preloaded into a process, logs what it does to the files of one folder, in the order in which it took effect:
 * writes, syncs, truncations, names made, moved and removed, syncs of the folder itself. What the process writes into
 * the file $REC_MARK goes into the same log, so that "this was acknowledged" has its place among the writes.
 *
 * $REC_DIR: the folder, absolute. $REC_LOG: the log. One record: op, length of name, inode, offset, length of data,
 * name, data. One lock around call and record, or the log's order would not be the order of what happened.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct __attribute__((packed)) record { char op; uint16_t name_len; uint64_t inode, offset, data_len; };

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int log_fd = -1;
static const char *folder, *mark;
static size_t folder_len;

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("REC_LOG");
    folder = getenv("REC_DIR");
    mark = getenv("REC_MARK");
    if (!log || !folder) return;
    folder_len = strlen(folder);
    log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void put(char op, const char *name, uint64_t inode, uint64_t offset, const void *data, size_t len) {
    struct record head = {op, strlen(name), inode, offset, len};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)name, head.name_len}, {(void *)data, len}};
    if (writev(log_fd, parts, 3) != (ssize_t)(sizeof head + head.name_len + len)) abort();
}

/* The name inside the folder, "" for the folder itself, NULL for what is elsewhere. */
static const char *inside(const char *path) {
    if (log_fd < 0 || strncmp(path, folder, folder_len)) return NULL;
    if (path[folder_len] == 0) return "";
    return path[folder_len] == '/' ? path + folder_len + 1 : NULL;
}

static const char *path_of(int fd, char *buffer) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, 4095);
    buffer[length < 0 ? 0 : length] = 0;
    return buffer;
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)

static void wrote(int fd, const void *data, ssize_t done, uint64_t offset) {
    char path[4096];
    const char *name;
    if (done <= 0 || log_fd < 0 || fd == log_fd) return;
    path_of(fd, path);
    if ((name = inside(path))) put('w', name, inode_of(fd), offset, data, done);
    else if (mark && !strcmp(path, mark)) put('a', "", 0, 0, data, done);
}

#define PWRITE(call) \
    ssize_t call(int fd, const void *data, size_t len, off64_t offset) { \
        REAL(ssize_t, call, int, const void *, size_t, off64_t); \
        pthread_mutex_lock(&lock); \
        ssize_t done = real(fd, data, len, offset); \
        wrote(fd, data, done, offset); \
        pthread_mutex_unlock(&lock); \
        return done; \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t write(int fd, const void *data, size_t len) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (log_fd < 0) return real(fd, data, len); /* no lock: this may be any pipe, and block */
    char path[4096];
    path_of(fd, path);
    if (!inside(path) && !(mark && !strcmp(path, mark))) return real(fd, data, len);
    pthread_mutex_lock(&lock);
    ssize_t done = real(fd, data, len);
    wrote(fd, data, done, done > 0 ? (uint64_t)(lseek(fd, 0, SEEK_CUR) - done) : 0);
    pthread_mutex_unlock(&lock);
    return done;
}

#define SYNC(call) \
    int call(int fd) { \
        REAL(int, call, int); \
        char path[4096]; \
        const char *name; \
        pthread_mutex_lock(&lock); \
        int result = real(fd); \
        if (!result && (name = inside(path_of(fd, path)))) put(*name ? 's' : 'd', name, inode_of(fd), 0, NULL, 0); \
        pthread_mutex_unlock(&lock); \
        return result; \
    }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE(call) \
    int call(int fd, off64_t length) { \
        REAL(int, call, int, off64_t); \
        char path[4096]; \
        const char *name; \
        pthread_mutex_lock(&lock); \
        int result = real(fd, length); \
        if (!result && (name = inside(path_of(fd, path)))) put('t', name, inode_of(fd), length, NULL, 0); \
        pthread_mutex_unlock(&lock); \
        return result; \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

#define OPEN(call) \
    int call(const char *path, int flags, ...) { \
        REAL(int, call, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        const char *name = inside(path); \
        if (!name || !(flags & (O_CREAT | O_TRUNC))) return real(path, flags, mode); \
        pthread_mutex_lock(&lock); \
        int known = !access(path, F_OK), fd = real(path, flags, mode); \
        if (fd >= 0 && !known) put('c', name, inode_of(fd), 0, NULL, 0); \
        else if (fd >= 0 && (flags & O_TRUNC)) put('t', name, inode_of(fd), 0, NULL, 0); \
        pthread_mutex_unlock(&lock); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    const char *name = inside(path);
    pthread_mutex_lock(&lock);
    int result = real(path);
    if (!result && name) put('u', name, 0, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    const char *old = inside(from), *name = inside(to);
    pthread_mutex_lock(&lock);
    int result = real(from, to);
    if (!result && old && name) put('r', old, 0, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return result;
}
