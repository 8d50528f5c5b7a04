#include "shape.h"

#include <string.h>

#include "json.h"

enum { HAS_ROLE = 0 };  // the number of that value

// An event that is being compared with a shape.
typedef struct {
    Values values;
    Event *event;
    int has_role;
    int is_new;           // a value is not that of the event before
    int role_is_unknown;  // an event with a role has a `SAME_WITH_ROLE` that is new
    int role_differs;
} Comparison;

// What stands for a value of any length: its hash (FNV-1a).
static int64_t hash_of(const char *begin, const char *end) {
    uint64_t hash = 14695981039346656037u;
    for (const char *at = begin; at < end; at++) hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    return (int64_t)hash;
}

static const Field *field_of(const Shape *shape, const JsonString *key) {
    size_t size = (size_t)(key->end - key->begin);
    for (int i = 0; i < shape->count; i++) {
        const Field *field = &shape->fields[i];
        if (field->key_size == size && !memcmp(field->key, key->begin, size)) return field;
    }
    return NULL;
}

static const char *text_of_field(const Field *field, const char *at) {
    JsonString found;
    const char *end = json_string(at, &found);
    if (!end || (size_t)(found.end - found.begin) != field->text_size) return NULL;
    return memcmp(found.begin, field->text, field->text_size) ? NULL : end;
}

static const char *content(const Field *field, const char *at, Comparison *comparison) {
    JsonString found;
    Event *event = comparison->event;
    const char *end = json_string(at, &found);
    if (!end) return NULL;
    if (event->kind != NO_CONTENT) {
        return field->rule == FIRST_CONTENT && event->kind == field->kind ? end : NULL;
    }
    if (!found.characters) return end;
    event->kind = field->kind;
    event->text = found.begin;
    event->text_size = (size_t)(found.end - found.begin);
    event->characters = found.characters;
    return end;
}

static int is_known(const Comparison *comparison, int value) {
    return (comparison->values.known >> value) & 1;
}

static void set_value(Comparison *comparison, int value, int64_t now) {
    if (!is_known(comparison, value) || comparison->values.values[value] != now) comparison->is_new = 1;
    comparison->values.values[value] = now;
    comparison->values.known |= 1u << value;
}

static const char *same_value(const Field *field, const char *at, Comparison *comparison) {
    const char *end = json_value(at);
    if (!end || json_nothing(at)) return NULL;
    int64_t now = hash_of(at, end);
    if (field->rule == SAME) {
        set_value(comparison, field->value, now);
    } else {
        comparison->role_is_unknown = !is_known(comparison, field->value);
        comparison->role_differs = !comparison->role_is_unknown && comparison->values.values[field->value] != now;
        comparison->values.values[field->value] = now;
        comparison->values.known |= 1u << field->value;
    }
    return end;
}

static const char *count(const Field *field, const char *at, Comparison *comparison) {
    int64_t now;
    const char *end = json_count(at, &now);
    if (!end) return NULL;
    int64_t *before = &comparison->values.values[field->value];
    if (!is_known(comparison, field->value)) {
        comparison->is_new = 1;
    } else if (now < *before) {
        return NULL;
    }
    *before = now;
    comparison->values.known |= 1u << field->value;
    comparison->event->counts |= 1u << field->value;
    return end;
}

static const char *compare(const Shape *shape, const char *at, Comparison *comparison);

static const char *one_inside(const Field *field, const char *at, Comparison *comparison) {
    if (*at != '[') return NULL;
    at = compare(field->inside, json_spaces(at + 1), comparison);
    if (!at) return NULL;
    at = json_spaces(at);
    return *at == ']' ? at + 1 : NULL;
}

static const char *value_of_field(const Field *field, const char *at, Comparison *comparison) {
    int is_object = field->rule == INSIDE;
    if (field->rule == NOTHING || (field->may_be_nothing && (!is_object || *at == 'n'))) {
        const char *end = json_nothing(at);
        if (end) return end;
    }
    switch (field->rule) {
        case ANYTHING:
            return json_value(at);
        case NOTHING:
            return field->text ? text_of_field(field, at) : NULL;
        case TEXT:
            return text_of_field(field, at);
        case CONTENT:
        case FIRST_CONTENT:
            // Of several thoughts in an event only the first counts, whatever the others are.
            if (field->rule == FIRST_CONTENT && comparison->event->kind == field->kind) return json_value(at);
            return content(field, at, comparison);
        case INSIDE:
            return compare(field->inside, at, comparison);
        case ONE_INSIDE:
            return one_inside(field, at, comparison);
        case ROLE:
            comparison->has_role = 1;
            return text_of_field(field, at);
        case SAME:
        case SAME_WITH_ROLE:
            return same_value(field, at, comparison);
        case COUNT:
            return count(field, at, comparison);
        case NEVER:
        case RULES:
            break;
    }
    return NULL;
}

// Whether the fields that must be there are among those that were seen.
static int has_required(const Shape *shape, uint64_t seen) {
    for (int i = 0; i < shape->count; i++) {
        if (shape->fields[i].is_required && !(seen >> i & 1)) return 0;
    }
    return 1;
}

// Walks over an object; NULL: it is of another shape.
static const char *compare(const Shape *shape, const char *at, Comparison *comparison) {
    JsonString key;
    uint64_t seen = 0;
    if (*at != '{') return NULL;
    at = json_spaces(at + 1);
    while (*at != '}') {
        at = json_string(at, &key);
        if (!at || key.has_escapes) return NULL;
        at = json_spaces(at);
        if (*at != ':') return NULL;
        at = json_spaces(at + 1);
        const Field *field = field_of(shape, &key);
        if (field) {
            uint64_t bit = (uint64_t)1 << (field - shape->fields);
            if (seen & bit) return NULL;  // twice
            seen |= bit;
            at = value_of_field(field, at, comparison);
        } else {
            at = shape->refuses_others ? NULL : json_value(at);
        }
        if (!at) return NULL;
        at = json_spaces(at);
        if (*at == ',') {
            at = json_spaces(at + 1);
            if (*at != '"') return NULL;
        } else if (*at != '}') {
            return NULL;
        }
    }
    return has_required(shape, seen) ? at + 1 : NULL;
}

static Verdict verdict_of(const Shape *shape, const char *data, const Values *before, Comparison *comparison) {
    *comparison->event = (Event){.kind = NO_CONTENT};
    comparison->values = *before;
    comparison->has_role = comparison->is_new = comparison->role_is_unknown = comparison->role_differs = 0;
    const char *end = compare(shape, json_spaces(data), comparison);
    if (!end || *json_spaces(end) != '\n') return OTHER;
    if (comparison->event->kind != NO_CONTENT) set_value(comparison, HAS_ROLE, comparison->has_role);
    if (comparison->has_role && comparison->role_differs) return OTHER;
    if (comparison->is_new || (comparison->has_role && comparison->role_is_unknown)) return LEARNT;
    return PLAIN;
}

Verdict event_verdict(const Shapes *shapes, int *last_shape, const char *data, Values *values, Event *event) {
    Comparison comparison = {.event = event};
    for (int i = 0; i < shapes->count; i++) {
        int number = (*last_shape + i) % shapes->count;
        Verdict verdict = verdict_of(shapes->shapes[number], data, values, &comparison);
        if (verdict != OTHER) {
            *last_shape = number;
            *values = comparison.values;
            return verdict;
        }
    }
    return OTHER;
}

int name_may_be_plain(const Shapes *shapes, const char *name, size_t size) {
    for (int i = 0; i < shapes->name_count; i++) {
        const char *known = shapes->names[i];
        if (strlen(known) == size && (!size || !memcmp(known, name, size))) return shapes->names_are_plain;
    }
    return !shapes->names_are_plain;
}
