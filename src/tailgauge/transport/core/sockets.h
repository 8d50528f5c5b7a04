// Reads the sockets of one worker on a thread of its own, which never needs the interpreter: whatever Python does, each
// segment is read, with the kernel's time, before the next one of its stream arrives.
//
// The thread decodes what it can (answer.h) and wakes the event loop, by an eventfd, for what cannot wait: the end of
// an answer, a read that somebody waits for, an answer that holds much. Other news waits for a few more. While much
// arrives the thread naps between two polls: the kernel stamps each segment, so a gap that is longer than a nap loses
// nothing.
#pragma once
#include <pthread.h>
#include <stdint.h>

#include "answer.h"
#include "buffer.h"
#include "sends.h"

enum { READ_SIZE = 65536 };

typedef enum { NOT_SENDING, CONNECTING, SENDING } SendState;

typedef struct {
    int fd;  // -1: the slot is free
    uint32_t generation;
    void *owner;     // a connection; NULL: it was opened here, and Python does not know it yet
    Answer *answer;  // of the request in flight; NULL: there is none
    int is_sealed;   // under TLS: Python decrypts what is read
    int is_fed;      // the body of the answer is decoded by the thread
    int is_urgent;   // somebody waits for what comes next
    int is_ready;    // Python is to look at it
    int is_full;     // it is not read until Python has taken what it holds
    int has_ended;
    int end_error;                      // errno of its end; 0: the peer has closed
    int64_t known;                      // the number of the first poll that tells whether the socket was empty
    int pool;                           // that it was lent to; -1: it was not
    int64_t usable_from, usable_until;  // where it was lent
    SendState sending;
    Buffer to_send;                   // what the socket has not taken yet
    int64_t opened_at, connected_at;  // of one that was opened here
    int64_t sent_at;                  // when the first byte of its request was passed to the kernel; 0: it was not
    Buffer reads;                     // each a `ReadHead` and its bytes: of heads, under TLS, or of no answer
} Slot;

typedef struct {
    int64_t size;
    Times times;
} ReadHead;

typedef struct {
    pthread_mutex_t lock;
    pthread_t thread;
    int is_running, stop, epoll, event, is_woken;
    Slot *slots;
    uint32_t slot_count, open;
    uint32_t *ready;
    size_t ready_count;
    int64_t ready_since;  // when the first of it was read
    int64_t wall_offset;  // wall minus monotonic clock, ns
    int64_t wake_at;      // when the loop is woken for what can wait; 0: nothing does
    int64_t polls, polled_at;
    int timer;  // readable when the next request is due
    int64_t timer_at;
    Sends sends;
    Buffer lags;  // int64 for each read: ns from its arrival until it was read
    char bytes[READ_SIZE];
} Sockets;

// All but `sockets_init` return 0, or an errno.
int sockets_init(Sockets *sockets);  // epoll, eventfd and the thread
void sockets_stop(Sockets *sockets);  // the thread: what it has stays
void sockets_free(Sockets *sockets);
int sockets_add(Sockets *sockets, int fd, void *owner, int is_sealed, uint32_t *number);

// With the lock held.
Slot *sockets_slot(Sockets *sockets, uint32_t number);  // NULL: it is free
void sockets_remove(Sockets *sockets, Slot *slot);
void sockets_feed(Slot *slot);                     // its answer gets what was read, and what comes
void sockets_go_on(Sockets *sockets, Slot *slot);  // where it was full
void sockets_set_timer(Sockets *sockets);          // for the next request that is due
