/* Records the distinct call sites of a run, or makes one call of a site fail. Loaded with LD_PRELOAD by torture.py.

   A call site is a process role, a function, and the kind of its file or peer. Only calls after the process is ready are
   looked at. What this library writes itself goes by raw system calls, so that it never meets itself.

   TORTURE_DIR     folder of the run: `sites` and `failed` are appended to, `port-N` names who listens on port N
   TORTURE_PROGRAM  folder of the program: all of its files of an ending are one kind
   TORTURE_SITE    the site that fails, or `descriptors` or `space`; empty: sites are recorded only
   TORTURE_ERRNO   with which error
   TORTURE_ALWAYS  1: every call from then on fails, not only the first of all processes */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define TEXT 512
#define SITES 4096

enum group { OTHER = 0, DESCRIPTOR = 1, SPACE = 2 };

static const char *folder = "";
static const char *program = "/nowhere";
static const char *chosen = "";
static int error_number;
static int always;
static const char *role = "";  /* empty: not a process whose calls fail */
static enum { OTHERS, MASTER, WORKER, REPORT } process;
static int records; /* how often the master replaced run.json, or a worker its record */
static int ready;
static uint64_t seen[SITES];

/* --- what this library does itself ------------------------------------------------------------------------------ */

static void append(const char *name, const char *line) {
    char text[2 * TEXT];
    int size = snprintf(text, sizeof text, "%s/%s", folder, name);
    int file = syscall(SYS_openat, AT_FDCWD, text, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (size <= 0 || file < 0)
        return;
    size = snprintf(text, sizeof text, "%s\n", line);
    syscall(SYS_write, file, text, (size_t)size);
    syscall(SYS_close, file);
}

/* Return whether this process is the first of all that asks. */
static int is_first(void) {
    char path[TEXT];
    snprintf(path, sizeof path, "%s/once", folder);
    int file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_EXCL | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0)
        syscall(SYS_close, file);
    return file >= 0;
}

static int ends_with(const char *text, const char *end) {
    size_t size = strlen(text), tail = strlen(end);
    return size >= tail && strcmp(text + size - tail, end) == 0;
}

__attribute__((constructor)) static void begin(void) {
    char line[4096];
    const char *text;
    if ((text = getenv("TORTURE_DIR")) != NULL)
        folder = strdup(text);
    if ((text = getenv("TORTURE_PROGRAM")) != NULL)
        program = strdup(text);
    if ((text = getenv("TORTURE_SITE")) != NULL)
        chosen = strdup(text);
    if ((text = getenv("TORTURE_ERRNO")) != NULL)
        error_number = atoi(text);
    if ((text = getenv("TORTURE_ALWAYS")) != NULL)
        always = atoi(text);
    int file = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? 0 : syscall(SYS_read, file, line, sizeof line - 1);
    if (file >= 0)
        syscall(SYS_close, file);
    line[size > 0 ? size : 0] = 0;
    for (ssize_t at = 0; at < size; at += strlen(line + at) + 1) {
        if (strcmp(line + at, "run") == 0)
            process = MASTER;
        if (strcmp(line + at, "endpoint") == 0)
            process = OTHERS;
        if (strcmp(line + at, "--wait") == 0) {
            process = REPORT;
            role = "report";
        }
    }
}

/* --- kinds ------------------------------------------------------------------------------------------------------ */

/* Write the kind of a path: without numbers, names of runs and names drawn at random. */
static void path_kind(const char *path, char *kind) {
    size_t base = strlen(folder), out = 0;
    char absolute[2 * TEXT];
    if (path[0] != '/') {
        char here[TEXT];
        if (syscall(SYS_getcwd, here, sizeof here) > 0) {
            snprintf(absolute, sizeof absolute, "%s/%s", here, path);
            path = absolute;
        }
    }
    if (base && strncmp(path, folder, base) == 0)
        path += base;
    else if (strstr(path, "/lib/python3") != NULL || strncmp(path, program, strlen(program)) == 0 || ends_with(path, ".py") || ends_with(path, ".pyc")) {
        const char *dot = strrchr(path, '.');
        int has_end = dot != NULL && strchr(dot, '/') == NULL && dot[1] != '_';
        snprintf(kind, TEXT, "PROGRAM%s", has_end && !isdigit((unsigned char)dot[1]) ? dot : "");
        return;
    }
    while (*path && out < TEXT - 16) {
        if (path[0] == '/') {
            const char *next = path + 1;
            int is_run = out >= 4 && (strncmp(kind + out - 4, "runs", 4) == 0 ||
                                      (out >= 7 && strncmp(kind + out - 7, "reports", 7) == 0));
            int is_drawn = strncmp(next, "tailgauge-", 10) == 0 || strncmp(next, "tmp", 3) == 0;
            kind[out++] = *path++;
            if ((is_run || (is_drawn && !isdigit((unsigned char)*next))) && *path) {
                if (is_drawn && !is_run && strcmp(next, "tmp") == 0)
                    continue;
                if (is_drawn && !is_run && strncmp(next, "tmp/", 4) == 0)
                    continue;
                memcpy(kind + out, "*", 1);
                out++;
                while (*path && *path != '/')
                    path++;
            }
        } else if (isdigit((unsigned char)*path)) {
            kind[out++] = 'N';
            while (isdigit((unsigned char)*path))
                path++;
        } else
            kind[out++] = *path++;
    }
    kind[out] = 0;
}

/* Write the kind of an open file; 0: none that can fail so. */
static int file_kind(int file, char *kind) {
    char name[64], path[2 * TEXT];
    if (file == 1 || file == 2) {
        strcpy(kind, file == 1 ? "standard output" : "standard error");
        return 1;
    }
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, name, path, sizeof path - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    if (strncmp(path, "anon_inode", 10) == 0)  /* an eventfd: the kernel has no error for a write to it */
        return 0;
    if (path[0] != '/') {
        *strchrnul(path, ':') = 0;
        strcpy(kind, path);
        return 1;
    }
    path_kind(path, kind);
    return 1;
}

static int port_of(const struct sockaddr *address) {
    if (address->sa_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)address)->sin_port);
    return address->sa_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)address)->sin6_port) : 0;
}

static const char *family_name(int family) {
    return family == AF_INET ? "inet" : family == AF_INET6 ? "inet6" : family == AF_UNIX ? "unix" : "other";
}

/* Write the family of an address and who listens on its port. */
static void peer_kind(const struct sockaddr *address, char *kind) {
    char name[TEXT], who[64] = "nobody known";
    snprintf(name, sizeof name, "%s/port-%d", folder, port_of(address));
    int file = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t size = syscall(SYS_read, file, who, sizeof who - 1);
        who[size > 0 ? size : 0] = 0;
        *strchrnul(who, '\n') = 0;
        syscall(SYS_close, file);
    }
    snprintf(kind, TEXT, "%s %s", family_name(address->sa_family), who);
}

/* --- the decision ----------------------------------------------------------------------------------------------- */

/* Record a call of this process that is ready, and return whether it fails. */
static int fails(enum group group, const char *function, const char *kind) {
    char site[2 * TEXT];
    snprintf(site, sizeof site, "%s %s %s", role, function, kind);
    uint64_t hash = 14695981039346656037u;
    for (const char *at = site; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    unsigned slot = hash % SITES;
    if (seen[slot] != hash) {
        seen[slot] = hash;
        append("sites", site);
    }
    int is_chosen = strcmp(chosen, site) == 0 || (strcmp(chosen, "descriptors") == 0 && group & DESCRIPTOR) ||
                    (strcmp(chosen, "space") == 0 && group & SPACE && strncmp(kind, "/out/", 5) == 0);
    if (!is_chosen || !(always || is_first()))
        return 0;
    append("failed", site);
    errno = error_number;
    return 1;
}

static int is_open(void) { return ready; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* --- files ------------------------------------------------------------------------------------------------------ */

static int open_fails(const char *path, int flags) {
    char kind[TEXT];
    int writes = (flags & O_ACCMODE) != O_RDONLY;
    if (process == MASTER && writes && strcmp(path, "/proc/self/comm") == 0) {
        process = WORKER;  /* a copy of the master settles */
        role = "";
    }
    if (!is_open())
        return 0;
    path_kind(path, kind);
    return fails(DESCRIPTOR | (flags & O_CREAT ? SPACE : 0), writes ? "open for writing" : "open for reading", kind);
}

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...) {                            \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        return open_fails(path, flags) ? -1 : REAL(name)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                        \
    int name(int at, const char *path, int flags, ...) {                    \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                       \
        return open_fails(path, flags) ? -1 : REAL(name)(at, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

static int fopen_fails(const char *path, const char *mode) {
    return open_fails(path, strpbrk(mode, "wa+") ? O_WRONLY | O_CREAT : O_RDONLY);
}
FILE *fopen(const char *path, const char *mode) {
    return fopen_fails(path, mode) ? NULL : REAL(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    return fopen_fails(path, mode) ? NULL : REAL(fopen64)(path, mode);
}
DIR *opendir(const char *path) {
    char kind[TEXT];
    if (is_open()) {
        path_kind(path, kind);
        if (fails(DESCRIPTOR, "opendir", kind))
            return NULL;
    }
    return REAL(opendir)(path);
}

static int file_fails(const char *function, int file) {
    char kind[TEXT];
    return is_open() && file_kind(file, kind) && fails(SPACE, function, kind);
}
ssize_t write(int file, const void *data, size_t size) {
    return file_fails("write", file) ? -1 : REAL(write)(file, data, size);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return file_fails("pwrite", file) ? -1 : REAL(pwrite)(file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return file_fails("pwrite", file) ? -1 : REAL(pwrite64)(file, data, size, at);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    return file_fails("writev", file) ? -1 : REAL(writev)(file, parts, count);
}
int fsync(int file) { return file_fails("fsync", file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return file_fails("fdatasync", file) ? -1 : REAL(fdatasync)(file); }
ssize_t read(int file, void *data, size_t size) {
    ssize_t got = REAL(read)(file, data, size);
    if (file == 0 && got > 0 && process == REPORT)
        ready = 1;  /* the report's process was told that the folder is complete */
    return got;
}

static int path_fails(enum group group, const char *function, const char *path) {
    char kind[TEXT];
    if (!is_open())
        return 0;
    path_kind(path, kind);
    return fails(group, function, kind);
}

/* The master is ready once run.json is there, a worker once its record is; both are written again when the run starts. */
static void note_rename(const char *path) {
    int is_record = process == MASTER   ? ends_with(path, "/run.json")
                    : process == WORKER ? strstr(path, "/workers/") != NULL
                                        : 0;
    if (!is_record)
        return;
    records++;
    ready = 1;
    if (process == MASTER)
        role = records > 1 ? "master" : "master-before";
    else
        role = records > 1 ? "worker" : "worker-before";
}
int rename(const char *from, const char *path) {
    if (path_fails(SPACE, "rename", path))
        return -1;
    int result = REAL(rename)(from, path);
    note_rename(path);
    return result;
}
int renameat(int at, const char *from, int to, const char *path) {
    if (path_fails(SPACE, "rename", path))
        return -1;
    int result = REAL(renameat)(at, from, to, path);
    note_rename(path);
    return result;
}
int mkdir(const char *path, mode_t mode) {
    return path_fails(SPACE, "mkdir", path) ? -1 : REAL(mkdir)(path, mode);
}
int mkdirat(int at, const char *path, mode_t mode) {
    return path_fails(SPACE, "mkdir", path) ? -1 : REAL(mkdirat)(at, path, mode);
}
int unlink(const char *path) { return path_fails(OTHER, "unlink", path) ? -1 : REAL(unlink)(path); }
int unlinkat(int at, const char *path, int flags) {
    return path_fails(OTHER, "unlink", path) ? -1 : REAL(unlinkat)(at, path, flags);
}
int rmdir(const char *path) { return path_fails(OTHER, "rmdir", path) ? -1 : REAL(rmdir)(path); }

/* --- sockets and other descriptors ------------------------------------------------------------------------------ */

static int makes(const char *function, const char *kind) {
    return is_open() && fails(DESCRIPTOR, function, kind);
}
int socket(int family, int type, int protocol) {
    return makes("socket", family_name(family)) ? -1 : REAL(socket)(family, type, protocol);
}
int socketpair(int family, int type, int protocol, int pair[2]) {
    return makes("socketpair", family_name(family)) ? -1 : REAL(socketpair)(family, type, protocol, pair);
}
int connect(int file, const struct sockaddr *address, socklen_t size) {
    char kind[TEXT];
    if (is_open() && address->sa_family != AF_UNSPEC) {
        peer_kind(address, kind);
        if (fails(OTHER, "connect", kind))
            return -1;
    }
    return REAL(connect)(file, address, size);
}
int listen(int file, int waiting) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    char name[64];
    if (*folder && getsockname(file, (struct sockaddr *)&address, &size) == 0) {
        snprintf(name, sizeof name, "port-%d", port_of((struct sockaddr *)&address));
        append(name, process == MASTER ? "master" : "endpoint");
    }
    return REAL(listen)(file, waiting);
}
static int accept_fails(int file) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (!is_open() || getsockname(file, (struct sockaddr *)&address, &size) != 0)
        return 0;
    return fails(DESCRIPTOR, "accept", family_name(address.ss_family));
}
int accept(int file, struct sockaddr *address, socklen_t *size) {
    return accept_fails(file) ? -1 : REAL(accept)(file, address, size);
}
int accept4(int file, struct sockaddr *address, socklen_t *size, int flags) {
    return accept_fails(file) ? -1 : REAL(accept4)(file, address, size, flags);
}
int epoll_create(int size) { return makes("epoll_create", "") ? -1 : REAL(epoll_create)(size); }
int epoll_create1(int flags) { return makes("epoll_create", "") ? -1 : REAL(epoll_create1)(flags); }
int eventfd(unsigned int value, int flags) { return makes("eventfd", "") ? -1 : REAL(eventfd)(value, flags); }
int timerfd_create(int clock, int flags) {
    return makes("timerfd_create", "") ? -1 : REAL(timerfd_create)(clock, flags);
}
int pipe(int pair[2]) { return makes("pipe", "") ? -1 : REAL(pipe)(pair); }
int pipe2(int pair[2], int flags) { return makes("pipe", "") ? -1 : REAL(pipe2)(pair, flags); }

/* --- processes, threads, memory --------------------------------------------------------------------------------- */

static int starts(const char *function) { return is_open() && fails(OTHER, function, ""); }
pid_t fork(void) { return starts("fork") ? -1 : REAL(fork)(); }
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    return starts("posix_spawn") ? errno
                                 : REAL(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument) {
    return starts("pthread_create") ? errno : REAL(pthread_create)(thread, attributes, work, argument);
}
void *mmap(void *address, size_t size, int protection, int flags, int file, off_t at) {
    if (is_open() && file == -1 && !(flags & MAP_FIXED) && fails(OTHER, "mmap", "memory"))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, size, protection, flags, file, at);
}
void *mmap64(void *address, size_t size, int protection, int flags, int file, off_t at) {
    return mmap(address, size, protection, flags, file, at);
}
