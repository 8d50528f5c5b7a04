#include "sends.h"

#include <stdlib.h>
#include <string.h>

void prepared_free(Prepared *prepared) {
    if (!prepared) return;
    buffer_free(&prepared->bytes);
    free(prepared);
}

void sends_free(Sends *sends) {
    for (size_t i = 0; i < sends->count; i++) prepared_free(sends->heap[i]);
    for (size_t i = 0; i < sends->pool_count; i++) free(sends->pools[i].lent);
    free(sends->heap);
    free(sends->pools);
    free(sends->notices);
    *sends = (Sends){0};
}

// Room for one more; NULL: no memory.
static void *grown(void *items, size_t count, size_t *room, size_t size) {
    if (count < *room) return items;
    size_t more = *room ? 2 * *room : 16;
    void *found = realloc(items, more * size);
    if (found) *room = more;
    return found;
}

// --- the heap -------------------------------------------------------------------------------------------------------

static void put(Sends *sends, size_t place, Prepared *prepared) {
    sends->heap[place] = prepared;
}

static void sift_up(Sends *sends, size_t place) {
    Prepared *prepared = sends->heap[place];
    while (place && prepared->due < sends->heap[(place - 1) / 2]->due) {
        put(sends, place, sends->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    put(sends, place, prepared);
}

static void sift_down(Sends *sends, size_t place) {
    Prepared *prepared = sends->heap[place];
    for (;;) {
        size_t child = 2 * place + 1;
        if (child >= sends->count) break;
        if (child + 1 < sends->count && sends->heap[child + 1]->due < sends->heap[child]->due) child++;
        if (sends->heap[child]->due >= prepared->due) break;
        put(sends, place, sends->heap[child]);
        place = child;
    }
    put(sends, place, prepared);
}

static Prepared *removed(Sends *sends, size_t place) {
    Prepared *prepared = sends->heap[place];
    sends->count--;
    if (place < sends->count) {
        put(sends, place, sends->heap[sends->count]);
        sift_down(sends, place);
        sift_up(sends, place);
    }
    return prepared;
}

int sends_add(Sends *sends, Prepared *prepared) {
    Prepared **heap = grown(sends->heap, sends->count, &sends->room, sizeof *heap);
    if (!heap) return 0;
    sends->heap = heap;
    put(sends, sends->count, prepared);
    sends->count++;
    sift_up(sends, sends->count - 1);
    return 1;
}

int64_t sends_next(const Sends *sends) {
    return sends->count ? sends->heap[0]->due : 0;
}

Prepared *sends_pop(Sends *sends, int64_t now) {
    return sends->count && sends->heap[0]->due <= now ? removed(sends, 0) : NULL;
}

Prepared *sends_withdraw(Sends *sends, uint64_t token) {
    for (size_t i = 0; i < sends->count; i++) {
        if (sends->heap[i]->token == token) return removed(sends, i);
    }
    return NULL;
}

// --- pools and notices ----------------------------------------------------------------------------------------------

int sends_add_pool(Sends *sends, const struct sockaddr_storage *address, socklen_t size, uint32_t *pool) {
    Pool *pools = realloc(sends->pools, (sends->pool_count + 1) * sizeof *pools);
    if (!pools) return 0;
    sends->pools = pools;
    pools[sends->pool_count] = (Pool){.address = *address, .address_size = size};
    *pool = (uint32_t)sends->pool_count++;
    return 1;
}

int sends_lend(Sends *sends, uint32_t pool_number, uint32_t number) {
    Pool *pool = &sends->pools[pool_number];
    uint32_t *lent = grown(pool->lent, pool->lent_count, &pool->lent_room, sizeof *lent);
    if (!lent) return 0;
    pool->lent = lent;
    lent[pool->lent_count++] = number;
    return 1;
}

int sends_unlend(Sends *sends, uint32_t pool_number, uint32_t number) {
    Pool *pool = &sends->pools[pool_number];
    for (size_t i = pool->lent_count; i-- > 0;) {
        if (pool->lent[i] != number) continue;
        pool->lent_count--;
        memmove(pool->lent + i, pool->lent + i + 1, (pool->lent_count - i) * sizeof *pool->lent);
        return 1;
    }
    return 0;
}

int sends_note(Sends *sends, Notice notice) {
    Notice *notices = grown(sends->notices, sends->notice_count, &sends->notice_room, sizeof *notices);
    if (!notices) return 0;
    sends->notices = notices;
    notices[sends->notice_count++] = notice;
    return 1;
}
