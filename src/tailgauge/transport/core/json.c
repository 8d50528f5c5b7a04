#include "json.h"

#include <stddef.h>
#include <string.h>

enum { MOST_DEPTH = 32, MOST_DIGITS = 18 };

const char *json_spaces(const char *at) {
    while (*at == ' ' || *at == '\t') at++;
    return at;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

// The four digits behind \u; -1 where there are none.
static int utf16_unit(const char *at) {
    int unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

static int is_between(int value, int least, int most) {
    return value >= least && value <= most;
}

// One escaped character. A surrogate without its other half is none.
static const char *escaped_character(const char *at) {
    char escape = at[1];
    if (escape == 'u') {
        int unit = utf16_unit(at + 2);
        if (unit < 0 || is_between(unit, 0xDC00, 0xDFFF)) return NULL;
        if (!is_between(unit, 0xD800, 0xDBFF)) return at + 6;
        if (at[6] != '\\' || at[7] != 'u') return NULL;
        return is_between(utf16_unit(at + 8), 0xDC00, 0xDFFF) ? at + 12 : NULL;
    }
    int is_known = escape == '"' || escape == '\\' || escape == '/' || escape == 'b' || escape == 'f' ||
                   escape == 'n' || escape == 'r' || escape == 't';
    return is_known ? at + 2 : NULL;
}

// One character beyond ASCII, as UTF-8 allows it: no surrogates, and none longer than needed.
static const char *utf8_character(const char *at) {
    const unsigned char *byte = (const unsigned char *)at;
    int least = 0x80;
    int most = 0xBF;
    int length;
    if (is_between(byte[0], 0xC2, 0xDF)) {
        length = 2;
    } else if (is_between(byte[0], 0xE0, 0xEF)) {
        length = 3;
        if (byte[0] == 0xE0) least = 0xA0;
        if (byte[0] == 0xED) most = 0x9F;
    } else if (is_between(byte[0], 0xF0, 0xF4)) {
        length = 4;
        if (byte[0] == 0xF0) least = 0x90;
        if (byte[0] == 0xF4) most = 0x8F;
    } else {
        return NULL;
    }
    if (!is_between(byte[1], least, most)) return NULL;
    for (int i = 2; i < length; i++) {
        if (!is_between(byte[i], 0x80, 0xBF)) return NULL;
    }
    return at + length;
}

const char *json_string(const char *at, JsonString *found) {
    if (*at != '"') return NULL;
    at++;
    found->begin = at;
    found->characters = 0;
    found->has_escapes = 0;
    while (*at != '"') {
        unsigned char byte = (unsigned char)*at;
        if (byte < 0x20) return NULL;
        if (byte == '\\') {
            found->has_escapes = 1;
            at = escaped_character(at);
        } else if (byte >= 0x80) {
            at = utf8_character(at);
        } else {
            at++;
        }
        if (!at) return NULL;
        found->characters++;
    }
    found->end = at;
    return at + 1;
}

// Digits, at most so many; NULL where there is none, or one more.
static const char *digits(const char *at) {
    const char *end = at;
    while (*end >= '0' && *end <= '9') end++;
    return end > at && end - at <= MOST_DIGITS ? end : NULL;
}

static const char *whole_number(const char *at) {
    if (at[0] == '0') return at[1] >= '0' && at[1] <= '9' ? NULL : at + 1;
    return digits(at);
}

static const char *number(const char *at) {
    if (*at == '-') at++;
    at = whole_number(at);
    if (at && *at == '.') at = digits(at + 1);
    if (at && (*at == 'e' || *at == 'E')) {
        at++;
        if (*at == '+' || *at == '-') at++;
        at = digits(at);
    }
    return at;
}

const char *json_count(const char *at, int64_t *found) {
    const char *end = whole_number(at);
    if (!end || *end == '.' || *end == 'e' || *end == 'E') return NULL;
    *found = 0;
    for (; at < end; at++) *found = *found * 10 + (*at - '0');
    return end;
}

static const char *literal(const char *at, const char *text) {
    while (*text) {
        if (*at++ != *text++) return NULL;
    }
    return at;
}

static const char *value_at_depth(const char *at, int depth);

static const char *list(const char *at, int depth) {
    at = json_spaces(at + 1);
    if (*at == ']') return at + 1;
    for (;;) {
        at = value_at_depth(at, depth);
        if (!at) return NULL;
        at = json_spaces(at);
        if (*at == ']') return at + 1;
        if (*at != ',') return NULL;
        at = json_spaces(at + 1);
    }
}

static const char *object(const char *at, int depth) {
    JsonString key;
    at = json_spaces(at + 1);
    if (*at == '}') return at + 1;
    for (;;) {
        at = json_string(at, &key);
        if (!at) return NULL;
        at = json_spaces(at);
        if (*at != ':') return NULL;
        at = value_at_depth(json_spaces(at + 1), depth);
        if (!at) return NULL;
        at = json_spaces(at);
        if (*at == '}') return at + 1;
        if (*at != ',') return NULL;
        at = json_spaces(at + 1);
    }
}

static const char *value_at_depth(const char *at, int depth) {
    JsonString text;
    if (depth == MOST_DEPTH) return NULL;
    switch (*at) {
        case '"':
            return json_string(at, &text);
        case '{':
            return object(at, depth + 1);
        case '[':
            return list(at, depth + 1);
        case 't':
            return literal(at, "true");
        case 'f':
            return literal(at, "false");
        case 'n':
            return literal(at, "null");
        default:
            return number(at);
    }
}

const char *json_value(const char *at) {
    return value_at_depth(at, 0);
}

const char *json_nothing(const char *at) {
    switch (*at) {
        case 'n':
            return literal(at, "null");
        case 'f':
            return literal(at, "false");
        case '"':
            return at[1] == '"' ? at + 2 : NULL;
        case '[':
            at = json_spaces(at + 1);
            return *at == ']' ? at + 1 : NULL;
        case '{':
            at = json_spaces(at + 1);
            return *at == '}' ? at + 1 : NULL;
        default:
            return NULL;
    }
}
