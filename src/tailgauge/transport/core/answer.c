#define _GNU_SOURCE
#include "answer.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TAIL = 65536, MOST_LINES = 100 };  // bytes and lines of an event: of longer ones Python has bounds

void answer_init(Answer *answer) {
    *answer = (Answer){0};
    pthread_mutex_init(&answer->lock, NULL);
}

void answer_free(Answer *answer) {
    framing_free(&answer->framing);
    buffer_free(&answer->tail);
    buffer_free(&answer->counted);
    news_free(&answer->news);
    pthread_mutex_destroy(&answer->lock);
}

void news_free(News *news) {
    buffer_free(&news->payload);
    for (int kind = 0; kind < KINDS; kind++) buffer_free(&news->kept[kind]);
    free(news->chunks);
    free(news->pieces);
}

void answer_begin(Answer *answer, FramingKind kind, uint64_t length, int64_t sent_at, int64_t before) {
    framing_begin(&answer->framing, kind, length);
    answer->sent_at = sent_at;
    answer->before = before;
}

size_t answer_held(const Answer *answer) {
    size_t kept = 0;
    for (int kind = 0; kind < KINDS; kind++) kept += answer->news.kept[kind].size;
    return answer->framing.line.size + answer->tail.size + answer->news.payload.size + answer->counted.size + kept +
           answer->news.chunk_count * sizeof(Chunk) + answer->news.piece_count * sizeof(Piece);
}

// --- what Python takes ---------------------------------------------------------------------------------------------

static Chunk *add_chunk(Answer *answer) {
    if (answer->news.chunk_count == answer->news.chunk_room) {
        size_t room = answer->news.chunk_room ? 2 * answer->news.chunk_room : 16;
        Chunk *chunks = realloc(answer->news.chunks, room * sizeof *chunks);
        if (!chunks) {
            answer->no_memory = 1;
            return NULL;
        }
        answer->news.chunks = chunks;
        answer->news.chunk_room = room;
    }
    return &answer->news.chunks[answer->news.chunk_count++];
}

static Piece piece_of(const Read *read, int rests) {
    return (Piece){
        .arrived = read->times.arrived,
        .low = read->low,
        .read_at = read->times.read_at,
        .read_index = read->index,
        .rests = rests,
    };
}

static void add_piece(Answer *answer, const char *bytes, size_t size, Piece piece) {
    if (answer->news.piece_count == answer->news.piece_room) {
        size_t room = answer->news.piece_room ? 2 * answer->news.piece_room : 4;
        Piece *pieces = realloc(answer->news.pieces, room * sizeof *pieces);
        if (!pieces) {
            answer->no_memory = 1;
            return;
        }
        answer->news.pieces = pieces;
        answer->news.piece_room = room;
    }
    piece.chunks_before = answer->news.chunk_count;
    piece.offset = answer->news.payload.size;
    piece.size = size;
    for (int kind = 0; kind < KINDS; kind++) piece.kept_before[kind] = answer->news.kept[kind].size;
    if (!buffer_add(&answer->news.payload, bytes, size)) {
        answer->no_memory = 1;
        return;
    }
    answer->news.pieces[answer->news.piece_count++] = piece;
}

// The last chunk, whose event has counts, becomes a piece.
static void answer_settle(Answer *answer) {
    if (!answer->counts) return;
    answer->counts = 0;
    answer->news.chunk_count--;
    answer->news.events--;
    for (int kind = 0; kind < KINDS; kind++) answer->news.kept[kind].size = answer->kept_before_counted[kind];
    const Read *read = &answer->counted_read;
    add_piece(answer, answer->counted.bytes, answer->counted.size, piece_of(read, !read->low));
}

void answer_take(Answer *answer, News *news) {
    answer_settle(answer);
    *news = answer->news;
    answer->news = (News){0};
    answer->taken_bytes = answer->body_bytes;
}

size_t answer_untaken(const Answer *answer) {
    return (size_t)(answer->body_bytes - answer->taken_bytes);
}

// The begin of an event goes to Python: its end goes there too, or never comes.
static void pass_tail(Answer *answer) {
    answer_settle(answer);
    add_piece(answer, answer->tail.bytes, answer->tail.size, piece_of(&answer->tail_read, 0));
    answer->tail.size = 0;
}

int answer_allow(Answer *answer, unsigned kinds) {
    if (answer->news.piece_count) return 0;
    answer->allowed = answer->shapes ? kinds : 0;
    if (answer->allowed || !answer->tail.size) return 1;
    pass_tail(answer);
    return 0;
}

// --- events --------------------------------------------------------------------------------------------------------

// The lines of an event: where its data begins, if it is on one line and nothing else is said but a name.
typedef struct {
    const char *data;
    const char *name;
    size_t name_size;
    int is_other;
    int has_fields;  // else it is only comments
} Lines;

static int begins_with(const char *at, const char *end, const char *text) {
    size_t size = strlen(text);
    return (size_t)(end - at) >= size && !memcmp(at, text, size);
}

// Where the value of a field begins whose name and colon take so many bytes.
static const char *value_at(const char *line, size_t size) {
    return line[size] == ' ' ? line + size + 1 : line + size;
}

// Comments, and fields that only a resumption needs, whose events are never decoded here.
static int is_ignored(const char *at, const char *stop) {
    return *at == ':' || begins_with(at, stop, "id:") || begins_with(at, stop, "retry:");
}

static Lines lines_of(const char *at, const char *end) {
    Lines lines = {0};
    int count = 0;
    while (at < end && !lines.is_other) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        if (begins_with(at, stop, "data:") && !lines.data) {
            lines.data = value_at(at, 5);
            lines.has_fields = 1;
        } else if (begins_with(at, stop, "event:") && !lines.name) {
            lines.name = value_at(at, 6);
            lines.name_size = (size_t)(stop - lines.name);
            lines.has_fields = 1;
        } else if (at < stop && !is_ignored(at, stop)) {
            lines.is_other = 1;
        }
        at = stop + 1;
        if (++count > MOST_LINES) lines.is_other = 1;
    }
    lines.is_other |= lines.has_fields && !lines.data;
    return lines;
}

static int64_t lower_bound(const Answer *answer, Times times) {
    int64_t low = answer->before ? answer->before : answer->sent_at ? answer->sent_at : times.arrived;
    if (times.empty_at > low) low = times.empty_at;
    return low < times.arrived ? low : times.arrived;
}

static void keep_text(Answer *answer, const Event *event) {
    if (!(answer->kept_kinds >> event->kind & 1)) return;
    if (!buffer_add(&answer->news.kept[event->kind], event->text, event->text_size)) answer->no_memory = 1;
}

static void keep_counted(Answer *answer, const char *begin, const char *end, const Read *read) {
    answer->counted.size = 0;
    if (!buffer_add(&answer->counted, begin, (size_t)(end - begin))) answer->no_memory = 1;
    answer->counted_read = *read;
}

static void add_event(Answer *answer, const Event *event, const char *begin, const char *end, const Read *read) {
    if (answer->counts & ~event->counts) answer_settle(answer);  // it has one that does not come again
    for (int kind = 0; kind < KINDS; kind++) answer->kept_before_counted[kind] = answer->news.kept[kind].size;
    answer->news.events++;
    Chunk *chunk = add_chunk(answer);
    if (!chunk) return;
    *chunk = (Chunk){
        .arrived = read->times.arrived,
        .low = read->low,
        .read_at = read->times.read_at,
        .read_index = read->index,
        .characters = (int32_t)event->characters,
        .kind = (unsigned char)event->kind,
    };
    keep_text(answer, event);
    answer->counts = event->counts;
    if (event->counts) keep_counted(answer, begin, end, read);
}

// One event, whose end is behind its empty line; returns 0 where it is not plain.
static int on_event(Answer *answer, const char *begin, const char *end, Read *read) {
    const char *at = begin;
    while (at < end && *at == '\n') at++;
    Lines lines = lines_of(at, end - 2);
    read->last = NO_EVENT;
    if (lines.is_other) return 0;
    if (!lines.has_fields) return 1;  // comments
    if (!name_may_be_plain(answer->shapes, lines.name, lines.name_size)) return 0;
    Event event;
    Values values = answer->values;
    Verdict verdict = event_verdict(answer->shapes, &answer->last_shape, lines.data, &values, &event);
    if (verdict == OTHER) return 0;
    if (event.kind != NO_CONTENT && !(answer->allowed >> event.kind & 1)) return 0;
    if (event.kind == NO_CONTENT && event.counts) return 0;
    answer->values = values;
    if (verdict == LEARNT) {
        answer_settle(answer);
        add_piece(answer, begin, (size_t)(end - begin), piece_of(read, 0));
        read->last = IN_PIECE;
    } else if (event.kind == NO_CONTENT) {
        answer->news.events++;
        read->last = WITHOUT_CONTENT;
    } else {
        add_event(answer, &event, begin, end, read);
        read->last = IN_CHUNK;
    }
    return 1;
}

// Leave what is there, and what comes, to Python.
static void stop_decoding(Answer *answer) {
    answer_settle(answer);
    answer->allowed = 0;
    answer->values = (Values){0};
}

// The events that have ended in this read; returns the bytes that they take. The rest is not plain, or no whole event.
static size_t on_events(Answer *answer, Read *read) {
    const char *begin = answer->tail.bytes;
    const char *end = begin + answer->tail.size;
    const char *at = begin;
    read->last = NO_EVENT;
    while (at < end) {
        const char *stop = memmem(at, (size_t)(end - at), "\n\n", 2);
        if (!stop) break;
        if (!on_event(answer, at, stop + 2, read)) {
            stop_decoding(answer);
            break;
        }
        at = stop + 2;
    }
    return (size_t)(at - begin);
}

static int only_line_feeds(const Buffer *buffer) {
    for (size_t i = 0; i < buffer->size; i++) {
        if (buffer->bytes[i] != '\n') return 0;
    }
    return 1;
}

// The last event of the read came exactly when the read did, if nothing came with it that is later.
static void set_exact(Answer *answer, const Read *read) {
    if (!only_line_feeds(&answer->tail) || answer->no_memory) return;
    if (read->last == IN_PIECE) answer->news.pieces[answer->news.piece_count - 1].rests = 1;
    if (read->last == IN_CHUNK) answer->news.chunks[answer->news.chunk_count - 1].low = 0;
    if (read->last == IN_CHUNK && answer->counts) answer->counted_read.low = 0;
}

static void on_payload(Answer *answer, size_t before, Read *read, int rests) {
    Buffer *tail = &answer->tail;
    answer->tail_read = *read;
    if (answer->allowed && memchr(tail->bytes + before, '\r', tail->size - before)) stop_decoding(answer);
    if (answer->allowed) {
        buffer_drop(tail, on_events(answer, read));
        if (answer->allowed && rests) set_exact(answer, read);
        if (answer->tail.size > MOST_TAIL) stop_decoding(answer);
    }
    if (!answer->allowed && tail->size) {
        add_piece(answer, tail->bytes, tail->size, piece_of(read, rests));
        tail->size = 0;
    }
}

void answer_read(Answer *answer, const char *bytes, size_t size, Times times) {
    Read read = {.times = times, .low = lower_bound(answer, times), .index = answer->read_index};
    size_t before = answer->tail.size;
    framing_read(&answer->framing, bytes, size, &answer->tail);
    if (answer->framing.error) answer->tail.size = before;  // what came with an error is not read
    answer->body_bytes += (int64_t)size;
    int64_t lag = times.read_at - times.arrived;
    if (lag > answer->lag_max) answer->lag_max = lag;
    if (!lag) answer->has_user_stamps = 1;
    int rests = framing_rests(&answer->framing) && !answer->is_user_clock;
    if (answer->tail.size > before) on_payload(answer, before, &read, rests);
    answer->before = times.arrived;
    answer->last_arrived = times.arrived;
    answer->last_read_at = times.read_at;
    answer->last_low = read.low;
    answer->read_index++;
    answer->reads++;
    if (answer->framing.is_done && answer->tail.size) pass_tail(answer);
}
