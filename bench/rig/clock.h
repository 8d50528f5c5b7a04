// Clocks, CPU time and the log of what was sent or seen; server.c and client.c both write it.
#ifndef RIG_CLOCK_H
#define RIG_CLOCK_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

static inline int64_t clock_ns(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static inline double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

// Wall minus monotonic clock, from the tightest of 16 brackets.
static inline int64_t wall_minus_monotonic(void) {
    int64_t best = INT64_MAX, offset = 0;
    for (int i = 0; i < 16; i++) {
        int64_t before = now_ns(), wall = clock_ns(CLOCK_REALTIME), after = now_ns();
        if (after - before < best) best = after - before, offset = wall - (before + after) / 2;
    }
    return offset;
}

// One request: the server's `began_ns` is the arrival of the request, the client's the time just before its send.
typedef struct {
    int64_t request;  // the first of the three numbers that end x-client-request-id: request/leg/attempt
    int32_t leg, attempt;
    int32_t status, chunks;
    int64_t began_ns, ended_ns;
} Entry;

typedef struct {
    Entry entry;
    int64_t *at_ns;  // of each chunk: before its send, or of the read that brought it
} Record;

typedef struct {
    Record **records;
    size_t count, room;
} Log;

static inline Record *log_begin(Log *log, size_t chunks) {
    if (log->count == log->room) {
        log->room = log->room ? log->room * 2 : 4096;
        log->records = realloc(log->records, log->room * sizeof *log->records);
    }
    Record *record = calloc(1, sizeof *record);
    record->at_ns = malloc((chunks ? chunks : 1) * sizeof *record->at_ns);
    log->records[log->count++] = record;
    return record;
}

// "RIGLOG01", number of entries, number of stamps; the entries; the stamps of all, in their order.
static inline int log_write(const Log *log, const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    int64_t sizes[2] = {(int64_t)log->count, 0};
    for (size_t i = 0; i < log->count; i++) sizes[1] += log->records[i]->entry.chunks;
    fwrite("RIGLOG01", 1, 8, file);
    fwrite(sizes, sizeof sizes, 1, file);
    for (size_t i = 0; i < log->count; i++) fwrite(&log->records[i]->entry, sizeof(Entry), 1, file);
    for (size_t i = 0; i < log->count; i++)
        fwrite(log->records[i]->at_ns, sizeof(int64_t), (size_t)log->records[i]->entry.chunks, file);
    return fclose(file);
}

static inline void many_files(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}
#endif
