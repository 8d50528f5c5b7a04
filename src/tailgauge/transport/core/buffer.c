#include "buffer.h"

#include <stdlib.h>
#include <string.h>

char *buffer_room(Buffer *buffer, size_t more) {
    size_t needed = buffer->size + more;
    if (needed > buffer->room) {
        size_t room = buffer->room ? buffer->room : 256;
        while (room < needed) room *= 2;
        char *bytes = realloc(buffer->bytes, room);
        if (!bytes) return NULL;
        buffer->bytes = bytes;
        buffer->room = room;
    }
    return buffer->bytes + buffer->size;
}

int buffer_add(Buffer *buffer, const char *bytes, size_t size) {
    if (!size) return 1;
    char *end = buffer_room(buffer, size);
    if (!end) return 0;
    memcpy(end, bytes, size);
    buffer->size += size;
    return 1;
}

void buffer_drop(Buffer *buffer, size_t size) {
    buffer->size -= size;
    if (buffer->size) memmove(buffer->bytes, buffer->bytes + size, buffer->size);
}

void buffer_free(Buffer *buffer) {
    free(buffer->bytes);
    *buffer = (Buffer){0};
}
