// The body of one answer: from bytes and their times to chunks as columns, and to what Python decodes.
//
// A stream of which Python says that it may (`answer_allow`) is decoded here, event by event, as long as its events are
// plain. The first that is not goes to Python, with all that follows it, until Python has decoded it and allows again.
// What Python gets is the payload of a read, as its own decoder takes it: there is one truth, and this is a shortcut.
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"
#include "framing.h"
#include "shape.h"

enum { KINDS = 4 };  // of content

// When the last byte of a read arrived; when it was read; when nothing of it was there yet (0: unknown). Monotonic, ns.
typedef struct {
    int64_t arrived, read_at, empty_at;
} Times;

// What the last event was that ended in a read.
typedef enum { NO_EVENT, WITHOUT_CONTENT, IN_CHUNK, IN_PIECE } LastEvent;

// A read that is being decoded; low: as of a chunk.
typedef struct {
    Times times;
    int64_t low;
    int32_t index;
    LastEvent last;
} Read;

typedef struct {
    int64_t arrived, low, read_at;  // low: when it had not come yet; 0: it came exactly then
    int32_t read_index, characters;
    unsigned char kind;
} Chunk;

// Payload of one read that Python decodes.
typedef struct {
    size_t chunks_before;  // chunks that come before it
    size_t offset, size;   // in `payload`
    int64_t arrived, low, read_at;
    int32_t read_index;
    int rests;                  // the read ends with it
    size_t kept_before[KINDS];  // bytes of kept content that come before it
} Piece;

// What Python takes.
typedef struct {
    Chunk *chunks;
    size_t chunk_count, chunk_room;
    Piece *pieces;
    size_t piece_count, piece_room;
    Buffer payload;
    Buffer kept[KINDS];  // content as it stands in JSON
    int64_t events;      // plain ones
} News;

typedef struct {
    pthread_mutex_t lock;
    Framing framing;
    const Shapes *shapes;  // NULL: nothing is decoded here
    int last_shape;
    unsigned allowed;     // kinds of content, a bit each, that are decoded here; 0: all goes to Python
    unsigned kept_kinds;  // of which the text is kept
    int is_user_clock;    // all times are of this process
    Values values;
    Buffer tail;     // payload that is no whole event yet
    Read tail_read;  // of its last byte
    int64_t before;  // arrival of the read before; 0: there was none
    int64_t sent_at;
    News news;
    // The last chunk, where its event has counts: Python gets it instead, because the last counts are those that count.
    Buffer counted;
    Read counted_read;
    uint32_t counts;                    // that it has, a bit each; 0: there is no such chunk
    size_t kept_before_counted[KINDS];  // bytes
    // Of all reads.
    int64_t reads, body_bytes, lag_max, last_read_at, last_arrived, last_low;
    int64_t taken_bytes;  // of the body, when it was taken last
    int32_t read_index;   // of the next
    int has_user_stamps;
    int no_memory;
} Answer;

void answer_init(Answer *answer);
void answer_free(Answer *answer);

// The head is over: the body comes next. `before`: when the head arrived, if it came alone.
void answer_begin(Answer *answer, FramingKind kind, uint64_t length, int64_t sent_at, int64_t before);

// Bytes of the body.
void answer_read(Answer *answer, const char *bytes, size_t size, Times times);

// Python has decoded all: decode content of these kinds here from now on. Returns 0 where there is more for Python, as
// the begin of an event is where nothing is decoded here any more.
int answer_allow(Answer *answer, unsigned kinds);

// Moves what is new to `news`, which is to be freed.
void answer_take(Answer *answer, News *news);
void news_free(News *news);

// Bytes of the body that came since it was taken last: what they bring may take no room at all.
size_t answer_untaken(const Answer *answer);

// Bytes that it holds.
size_t answer_held(const Answer *answer);
