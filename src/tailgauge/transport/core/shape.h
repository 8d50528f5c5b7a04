// The shapes of plain events: those that bring content, or nothing, and nothing else that the decoder in Python acts
// on. A protocol describes its own (see protocols/shapes.py). An event of another shape is not wrong: it is decoded in
// Python.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { MOST_FIELDS = 64, MOST_VALUES = 32 };
enum { NO_CONTENT = -1 };

typedef enum {
    ANYTHING,       // any value
    NEVER,          // the key must not be there
    NOTHING,        // null, false, "", [] or {}, or the text of the field
    TEXT,           // the text of the field
    CONTENT,        // a text, which is content
    FIRST_CONTENT,  // the same; where several fields of an event have one, it is the first
    INSIDE,         // an object of another shape
    ONE_INSIDE,     // a list with one object of another shape
    SAME,           // the value of the event before it
    ROLE,           // the text of the field; the event must have the `SAME_WITH_ROLE` of the event before it
    SAME_WITH_ROLE,
    COUNT,  // a whole number, not below that of the event before it
    RULES
} Rule;

typedef struct Shape Shape;

typedef struct {
    char *key;
    size_t key_size;
    Rule rule;
    int may_be_nothing;  // the event may have nothing there, as if the key were not there; of an object: null alone
    int is_required;
    int kind;   // of content
    int value;  // of SAME, SAME_WITH_ROLE and COUNT: which of the stream's values it is compared with
    char *text;
    size_t text_size;
    Shape *inside;
} Field;

struct Shape {
    Field *fields;
    int count;
    int refuses_others;  // other keys than these make an event one of another shape
};

// The shapes of the plain events of a protocol.
typedef struct {
    Shape **shapes;
    int count;
    char **names;  // of events: those that are plain, or those that never are
    int name_count;
    int names_are_plain;
} Shapes;

// Values of the events before, by which some are compared.
typedef struct {
    int64_t values[MOST_VALUES];  // a count, or what stands for a value; the first: whether the event had a role
    uint32_t known;               // a bit for each
} Values;

typedef enum {
    OTHER,   // not plain
    LEARNT,  // plain, but a value is new: Python must see it
    PLAIN
} Verdict;

typedef struct {
    int kind;          // of its content, or NO_CONTENT
    const char *text;  // content as it stands between its quotation marks
    size_t text_size;
    int64_t characters;
    uint32_t counts;  // its values that are counts, a bit each
} Event;

// What an event is whose data begins here and ends with a line feed. Where it is plain or learnt, `values` become its
// own.
Verdict event_verdict(const Shapes *shapes, int *last_shape, const char *data, Values *values, Event *event);

// Whether an event of this name may be plain; size 0: it has none.
int name_may_be_plain(const Shapes *shapes, const char *name, size_t size);
