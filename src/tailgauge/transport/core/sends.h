// Requests that are made ahead and leave at their due time, whatever Python does.
//
// A request goes out on a connection that Python has lent for it, or on a new one to the pool's address, which is
// opened at the due time. Where neither can be, Python gets it back at its due time. What left is told by notices, in
// their order.
#pragma once
#include <netinet/in.h>
#include <stdint.h>

#include "buffer.h"

typedef struct {
    int64_t due;
    uint64_t token;  // Python's name for it
    uint32_t pool;
    Buffer bytes;
} Prepared;

// Connections to one address.
typedef struct {
    struct sockaddr_storage address;
    socklen_t address_size;  // 0: none is opened here
    uint32_t *lent;          // slots, the one lent last at the end
    size_t lent_count, lent_room;
} Pool;

typedef enum { ON_LENT, ON_NEW, BACK } NoticeKind;

typedef struct {
    uint64_t token;
    uint32_t number;  // of the slot
    NoticeKind kind;
    int64_t at;
} Notice;

typedef struct {
    Prepared **heap;  // the next due first
    size_t count, room;
    Pool *pools;
    size_t pool_count;
    Notice *notices;
    size_t notice_count, notice_room;
    int64_t sent, most_sent;  // how many have left, and may
} Sends;

void sends_free(Sends *sends);

// Whether there was memory.
int sends_add(Sends *sends, Prepared *prepared);
int sends_add_pool(Sends *sends, const struct sockaddr_storage *address, socklen_t size, uint32_t *pool);
int sends_lend(Sends *sends, uint32_t pool, uint32_t number);
int sends_note(Sends *sends, Notice notice);

// When the next is due; 0: there is none.
int64_t sends_next(const Sends *sends);
// The next, where it is due, else NULL. To be freed by `prepared_free`, as what is withdrawn.
Prepared *sends_pop(Sends *sends, int64_t now);
Prepared *sends_withdraw(Sends *sends, uint64_t token);
void prepared_free(Prepared *prepared);

// Whether it was lent.
int sends_unlend(Sends *sends, uint32_t pool, uint32_t number);
