/* A disk that fails on demand: loaded through LD_PRELOAD, it stands before the calls that reach files.
 *
 * `disk_arm` says which paths are on that disk (those that hold `under`), which calls count (a
 * string of the letters below), and at which of them what happens: an errno, once or from then on.
 * `short_every` cuts every n-th read or write in half, `interrupt_every` has every n-th call end
 * with EINTR.  `log` names a file that every call which changes the disk is written to, with its
 * bytes; a sync is there twice, when it begins and when it has ended.  `disk_calls` is the count,
 * `disk_failed` the letter and the path of the first call that failed.
 *
 *   o open   r read   w write   s sync   t truncate   a allocate   n rename   l list   f lock
 *   u unlink, rmdir   d mkdir   p populate mapped pages   m map   i stat, statvfs   v advise
 *   q stat of what is open   b begin to write back   c close what was written   k close what was read
 *
 * A process that nobody arms arms itself from `FAILING_DISK="rank under letters at errno stays"`,
 * where it is that rank of a job.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char under[PATH_MAX], letters[32], failed[PATH_MAX + 8];
static long fail_at, count, short_every, interrupt_every, turns, syncs;
static int number, stays, log_fd = -1;

static struct { char *at; size_t length; char path[PATH_MAX]; } maps[64];
static unsigned next_map;

void disk_arm(const char *path, const char *which, long at, int err, int sticky, long shorten,
              long interrupt, const char *log)
{
    pthread_mutex_lock(&lock);
    snprintf(under, sizeof under, "%s", path);
    snprintf(letters, sizeof letters, "%s", which);
    fail_at = at, number = err, stays = sticky, short_every = shorten, interrupt_every = interrupt;
    count = turns = syncs = 0, failed[0] = 0;
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = log[0] ? (int)syscall(SYS_openat, AT_FDCWD, log,
                                   O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void arm_from_environment(void)
{
    const char *told = getenv("FAILING_DISK"), *rank = getenv("RANK");
    char mine[16], path[PATH_MAX], which[32];
    long at;
    int err, sticky;
    if (!told || !rank) return;
    if (sscanf(told, "%15s %4000s %31s %ld %d %d", mine, path, which, &at, &err, &sticky) == 6
        && !strcmp(mine, rank))
        disk_arm(path, which, at, err, sticky, 0, 0, "");
}

long disk_calls(void) { return count; }
const char *disk_failed(void) { return failed; }

/* Where a path leads, seen from an open folder. */
static const char *absolute(int folder, const char *path, char *out)
{
    char root[PATH_MAX], link[64];
    if (path[0] == '/') return strcpy(out, path);
    if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t n = readlink(link, root, sizeof root - 1);
    if (n < 0) return strcpy(out, "");
    root[n] = 0;
    if (path[0]) snprintf(out, PATH_MAX, "%.2000s/%.2000s", root, path);
    else strcpy(out, root);
    return out;
}

static const char *of_fd(int fd, char *out) { return absolute(fd, "", out); }

static int ours(const char *path) { return under[0] && strstr(path, under) != NULL; }

/* Whether this call fails: it sets errno. */
static int fails(char letter, const char *path)
{
    int found = 0;
    if (!ours(path) || !strchr(letters, letter)) return 0;
    pthread_mutex_lock(&lock);
    count++;
    if (fail_at && (count == fail_at || (stays && count > fail_at))) found = number;
    if (found && !failed[0]) snprintf(failed, sizeof failed, "%c %s", letter, path);
    pthread_mutex_unlock(&lock);
    if (found) errno = found;
    return found;
}

/* What becomes of a read or a write: 0 as asked, 1 by half, -1 interrupted. */
static int disturbed(const char *path)
{
    int found = 0;
    if (!ours(path) || !(short_every || interrupt_every)) return 0;
    pthread_mutex_lock(&lock);
    turns++;
    if (interrupt_every && turns % interrupt_every == 0) found = -1;
    else if (short_every && turns % short_every == 0) found = 1;
    pthread_mutex_unlock(&lock);
    if (found < 0) errno = EINTR;
    return found;
}

/* One line of the log: what, a number, the lengths of what follows, then path, other path, bytes. */
static void note(char what, const char *path, const char *other, int64_t at, const struct iovec *v,
                 int n, size_t length)
{
    if (log_fd < 0 || !ours(path)) return;
    int kept = errno;
    char head[96];
    pthread_mutex_lock(&lock);
    int size = snprintf(head, sizeof head, "%c %lld %zu %zu %zu\n", what, (long long)at,
                        strlen(path), strlen(other), length);
    syscall(SYS_write, log_fd, head, size);
    syscall(SYS_write, log_fd, path, strlen(path));
    syscall(SYS_write, log_fd, other, strlen(other));
    for (int k = 0; k < n && length; k++) {
        size_t part = v[k].iov_len < length ? v[k].iov_len : length;
        syscall(SYS_write, log_fd, v[k].iov_base, part);
        length -= part;
    }
    pthread_mutex_unlock(&lock);
    errno = kept;
}

static ssize_t some(char letter, int fd, const struct iovec *v, int n, off_t at, int flags)
{
    char path[PATH_MAX];
    of_fd(fd, path);
    if (fails(letter, path)) return -1;
    int what = disturbed(path);
    if (what < 0) return -1;
    struct iovec half = {v[0].iov_base, v[0].iov_len > 1 ? v[0].iov_len / 2 : v[0].iov_len};
    if (what > 0) v = &half, n = 1;
    int64_t where = at;
    if (at < 0 && letter == 'w') {
        int open_flags = fcntl(fd, F_GETFL);
        where = lseek(fd, 0, open_flags & O_APPEND ? SEEK_END : SEEK_CUR);
    }
    ssize_t done = letter == 'r' ? syscall(SYS_preadv2, fd, v, n, at, 0, flags)
                                 : syscall(SYS_pwritev2, fd, v, n, at, 0, flags);
    if (done > 0 && letter == 'w') note('w', path, "", where, v, n, (size_t)done);
    return done;
}

#define ONE(b, n) &(struct iovec){(void *)(b), (n)}, 1

/* A pipe or a terminal has no position: what is no file goes through untouched. */
#define PLAIN(fd) ({ struct stat s; under[0] && !syscall(SYS_fstat, fd, &s) && S_ISREG(s.st_mode); })

ssize_t read(int fd, void *b, size_t n)
{
    return PLAIN(fd) && n ? some('r', fd, ONE(b, n), -1, 0) : syscall(SYS_read, fd, b, n);
}
ssize_t write(int fd, const void *b, size_t n)
{
    return PLAIN(fd) && n ? some('w', fd, ONE(b, n), -1, 0) : syscall(SYS_write, fd, b, n);
}
ssize_t pread(int fd, void *b, size_t n, off_t at) { return some('r', fd, ONE(b, n), at, 0); }
ssize_t pread64(int fd, void *b, size_t n, off_t at) { return some('r', fd, ONE(b, n), at, 0); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { return some('w', fd, ONE(b, n), at, 0); }
ssize_t pwrite64(int fd, const void *b, size_t n, off_t at) { return some('w', fd, ONE(b, n), at, 0); }

#define VECTORED(letter, name) \
    ssize_t name(int fd, const struct iovec *v, int n, off_t at) { return some(letter, fd, v, n, at, 0); }
#define VECTORED2(letter, name) \
    ssize_t name(int fd, const struct iovec *v, int n, off_t at, int flags) \
    { return some(letter, fd, v, n, at, flags); }
VECTORED('r', preadv)
VECTORED('r', preadv64)
VECTORED('w', pwritev)
VECTORED('w', pwritev64)
VECTORED2('r', preadv2)
VECTORED2('r', preadv64v2)
VECTORED2('w', pwritev2)
VECTORED2('w', pwritev64v2)

static int synced(const char *name, int fd)
{
    char path[PATH_MAX], began[24];
    of_fd(fd, path);
    if (fails('s', path)) return -1;
    if (disturbed(path) < 0) return -1;
    pthread_mutex_lock(&lock);
    snprintf(began, sizeof began, "%ld", ++syncs);
    pthread_mutex_unlock(&lock);
    note('S', path, began, 0, NULL, 0, 0);
    int done = (int)syscall(name[1] == 's' ? SYS_fsync : SYS_fdatasync, fd);
    if (!done) note('s', path, began, 0, NULL, 0, 0);
    return done;
}
int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

int sync_file_range(int fd, off64_t at, off64_t length, unsigned flags)
{
    char path[PATH_MAX];
    return fails('b', of_fd(fd, path)) ? -1 : (int)syscall(SYS_sync_file_range, fd, at, length, flags);
}

static int cut(int fd, off_t size)
{
    char path[PATH_MAX];
    of_fd(fd, path);
    if (fails('t', path)) return -1;
    int done = (int)syscall(SYS_ftruncate, fd, size);
    if (!done) note('t', path, "", size, NULL, 0, 0);
    return done;
}
int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off_t size) { return cut(fd, size); }

int fallocate(int fd, int mode, off_t at, off_t size)
{
    char path[PATH_MAX];
    return fails('a', of_fd(fd, path)) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size)
{
    char path[PATH_MAX];
    if (fails('a', of_fd(fd, path))) return number;
    return syscall(SYS_fallocate, fd, 0, at, size) ? errno : 0;
}

static int moved(int a, const char *from, int b, const char *to, unsigned flags)
{
    char old[PATH_MAX], new[PATH_MAX];
    absolute(a, from, old);
    absolute(b, to, new);
    if (fails('n', new)) return -1;
    int done = (int)syscall(SYS_renameat2, a, from, b, to, flags);
    if (!done) note('n', old, new, flags, NULL, 0, 0);
    return done;
}
int rename(const char *from, const char *to) { return moved(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return moved(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned f) { return moved(a, from, b, to, f); }

static int gone(int folder, const char *name, int flags)
{
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (fails('u', path)) return -1;
    int done = (int)syscall(SYS_unlinkat, folder, name, flags);
    if (!done) note('u', path, "", flags, NULL, 0, 0);
    return done;
}
int unlink(const char *name) { return gone(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return gone(AT_FDCWD, name, AT_REMOVEDIR); }
int unlinkat(int folder, const char *name, int flags) { return gone(folder, name, flags); }

static int made(int folder, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (fails('d', path)) return -1;
    int done = (int)syscall(SYS_mkdirat, folder, name, mode);
    if (!done) note('d', path, "", 0, NULL, 0, 0);
    return done;
}
int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int folder, const char *name, mode_t mode) { return made(folder, name, mode); }

static int opened(int folder, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (fails('o', path)) return -1;
    int there = !faccessat(folder, name, F_OK, 0);
    int fd = (int)syscall(SYS_openat, folder, name, flags, mode);
    if (fd >= 0 && (flags & O_CREAT) && !there) note('c', path, "", 0, NULL, 0, 0);
    if (fd >= 0 && (flags & O_TRUNC) && there) note('t', path, "", 0, NULL, 0, 0);
    return fd;
}
#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE(flags) return opened(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE(flags) return opened(folder, name, flags, mode); }

static void *mapped(void *at, size_t length, int prot, int flags, int fd, off_t offset)
{
    char path[PATH_MAX] = "";
    if (fd >= 0 && under[0]) {
        of_fd(fd, path);
        if (fails('m', path)) return MAP_FAILED;
    }
    void *found = (void *)syscall(SYS_mmap, at, length, prot, flags, fd, offset);
    if (found != MAP_FAILED && ours(path)) {
        pthread_mutex_lock(&lock);
        unsigned k = next_map++ % 64;
        maps[k].at = found, maps[k].length = length;
        strcpy(maps[k].path, path);
        pthread_mutex_unlock(&lock);
    }
    return found;
}
void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { return mapped(a, n, p, f, fd, o); }
void *mmap64(void *a, size_t n, int p, int f, int fd, off_t o) { return mapped(a, n, p, f, fd, o); }

int madvise(void *at, size_t length, int advice)
{
    char path[PATH_MAX] = "";
    if (under[0]) {
        pthread_mutex_lock(&lock);
        for (unsigned k = 0; k < 64; k++)
            if (maps[k].at == (char *)at) strcpy(path, maps[k].path);
        pthread_mutex_unlock(&lock);
        if (path[0] && fails(advice == 22 ? 'p' : 'v', path)) return -1; /* MADV_POPULATE_READ */
    }
    return (int)syscall(SYS_madvise, at, length, advice);
}
static int advised(int fd, off_t at, off_t length, int advice)
{
    char path[PATH_MAX];
    if (fails('v', of_fd(fd, path))) return errno;
    return syscall(SYS_fadvise64, fd, at, length, advice) ? errno : 0;
}
int posix_fadvise(int fd, off_t at, off_t n, int advice) { return advised(fd, at, n, advice); }
int posix_fadvise64(int fd, off_t at, off_t n, int advice) { return advised(fd, at, n, advice); }

static int looked(int folder, const char *name, struct stat *out, int flags)
{
    char path[PATH_MAX];
    char letter = flags & AT_EMPTY_PATH ? 'q' : 'i';
    if (under[0] && fails(letter, absolute(folder, name, path))) return -1;
    return (int)syscall(SYS_newfstatat, folder, name, out, flags);
}
int stat(const char *name, struct stat *out) { return looked(AT_FDCWD, name, out, 0); }
int lstat(const char *name, struct stat *out) { return looked(AT_FDCWD, name, out, AT_SYMLINK_NOFOLLOW); }
int fstat(int fd, struct stat *out) { return looked(fd, "", out, AT_EMPTY_PATH); }
int fstatat(int f, const char *name, struct stat *out, int flags) { return looked(f, name, out, flags); }
int stat64(const char *name, struct stat64 *out) { return looked(AT_FDCWD, name, (struct stat *)out, 0); }
int lstat64(const char *name, struct stat64 *out)
{
    return looked(AT_FDCWD, name, (struct stat *)out, AT_SYMLINK_NOFOLLOW);
}
int fstat64(int fd, struct stat64 *out) { return looked(fd, "", (struct stat *)out, AT_EMPTY_PATH); }
int fstatat64(int f, const char *name, struct stat64 *out, int flags)
{
    return looked(f, name, (struct stat *)out, flags);
}

#define HONEST(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ROOM(name, kind) \
    int name(const char *of, struct kind *out) \
    { \
        char path[PATH_MAX]; \
        return under[0] && fails('i', absolute(AT_FDCWD, of, path)) ? -1 : HONEST(name)(of, out); \
    }
ROOM(statvfs, statvfs)
ROOM(statvfs64, statvfs64)

DIR *opendir(const char *name)
{
    char path[PATH_MAX];
    return under[0] && fails('l', absolute(AT_FDCWD, name, path)) ? NULL : HONEST(opendir)(name);
}
#define NEXT(name, kind) \
    struct kind *name(DIR *folder) \
    { \
        char path[PATH_MAX]; \
        return under[0] && fails('l', of_fd(dirfd(folder), path)) ? NULL : HONEST(name)(folder); \
    }
NEXT(readdir, dirent)
NEXT(readdir64, dirent64)

int flock(int fd, int what)
{
    char path[PATH_MAX];
    return under[0] && fails('f', of_fd(fd, path)) ? -1 : (int)syscall(SYS_flock, fd, what);
}

/* What is written is lost or not by then; the descriptor is gone either way. */
int close(int fd)
{
    char path[PATH_MAX];
    char letter = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? 'k' : 'c';
    int found = under[0] && PLAIN(fd) ? fails(letter, of_fd(fd, path)) : 0;
    int done = (int)syscall(SYS_close, fd);
    if (!found) return done;
    errno = found;
    return -1;
}
