// Bytes that grow.
#pragma once
#include <stddef.h>

typedef struct {
    char *bytes;
    size_t size, room;
} Buffer;

// Room for so many more bytes behind those that are there; NULL: no memory.
char *buffer_room(Buffer *buffer, size_t more);
// Whether it could be done.
int buffer_add(Buffer *buffer, const char *bytes, size_t size);
// Drops the first bytes.
void buffer_drop(Buffer *buffer, size_t size);
void buffer_free(Buffer *buffer);
