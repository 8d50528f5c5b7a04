// Where the body of an HTTP/1.1 response ends, and its payload. `http1.py` says the same in Python, and the same of
// errors.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

typedef enum { CHUNKED, COUNTED, UNTIL_CLOSE } FramingKind;
typedef enum { SIZE_LINE, CHUNK, CHUNK_END, TRAILER } FramingState;
typedef enum {
    FRAMING_OK,
    NO_MEMORY,
    SIZE_LINE_TOO_LONG,
    NO_CHUNK_SIZE,
    BYTES_BEHIND_CHUNK,
    TOO_MANY_TRAILERS
} FramingError;

typedef struct {
    FramingKind kind;
    FramingState state;
    uint64_t left;  // bytes of the chunk, or of a counted body
    Buffer line;    // of chunked framing: one that has no end yet, or is wrong
    int trailers;
    int is_done;
    int has_excess;  // more came than the body
    FramingError error;
} Framing;

void framing_begin(Framing *framing, FramingKind kind, uint64_t length);

// Appends the payload among these bytes.
void framing_read(Framing *framing, const char *bytes, size_t size, Buffer *payload);

// Whether the last byte ended a piece of payload: what comes later did not come with it.
int framing_rests(const Framing *framing);

void framing_free(Framing *framing);
