// Walks over values of JSON, by its grammar. Each takes the bytes from `at` on and returns the end of the value, NULL: there
// is none. What is walked over ends with a control character.
#pragma once
#include <string.h>

enum { COUNT_DIGITS = 11, WHOLE_DIGITS = 18, FRACTION_DIGITS = 30, EXPONENT_DIGITS = 3 };

static const char *digits(const char *at, int most) {
    const char *end = at;
    while (end - at < most && *end >= '0' && *end <= '9') end++;
    return end > at ? end : NULL;
}

static const char *whole(const char *at, int most) {
    return at[0] == '0' && at[1] >= '0' && at[1] <= '9' ? NULL : digits(at, most);
}

static const char *number(const char *at) {
    const char *end = whole(at + (*at == '-'), WHOLE_DIGITS), *next;
    if (end && *end == '.' && (next = digits(end + 1, FRACTION_DIGITS))) end = next;
    if (end && (*end == 'e' || *end == 'E')) {
        next = digits(end + 1 + (end[1] == '+' || end[1] == '-'), EXPONENT_DIGITS);
        if (next) end = next;
    }
    return end;
}

static const char *numbers(const char *at) {
    if (*at++ != '[') return NULL;
    while (*at != ']') {
        if (!(at = number(at))) return NULL;
        if (*at == ',') at += 1 + (at[1] == ' ');
        else if (*at != ']') return NULL;
        else break;
        if (*at == ']') return NULL;
    }
    return at + 1;
}

static int hex(char c) {
    int lower = c | 0x20;
    return c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Up to the quotation mark, with its characters; `high` is set where it has bytes beyond ASCII.
static const char *string(const char *at, int *high, Py_ssize_t *characters) {
    int first = 0;  // of two escapes that are one character
    for (*characters = 0;; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == '"') return at;
        if (c < 0x20) return NULL;
        *high |= c & 0x80;
        if (c != '\\') {
            *characters += (c & 0xC0) != 0x80;
            first = 0;
        } else if (*++at == 'u') {
            int unit = 0;
            for (int i = 0; i < 4; i++) {
                if (hex(*++at) < 0) return NULL;
                unit = unit * 16 + hex(*at);
            }
            if (first && unit >= 0xDC00 && unit < 0xE000) first = 0;
            else ++*characters, first = unit >= 0xD800 && unit < 0xDC00;
        } else if (!*at || !strchr("\"\\/bfnrt", *at)) {
            return NULL;
        } else {
            ++*characters, first = 0;
        }
    }
}

// A value of a kind: t a text up to its end, with its characters, s a string, n a number, c a count, l a list of numbers.
static const char *value(char kind, const char *at, int *high, Py_ssize_t *characters) {
    Py_ssize_t ignored;
    if (kind == 't') return string(at, high, characters);
    if (kind == 's') return *at == '"' && (at = string(at + 1, high, &ignored)) ? at + 1 : NULL;
    if (kind == 'c') return whole(at, COUNT_DIGITS);
    return kind == 'l' ? numbers(at) : number(at);
}

// As Python's decoder has it: no surrogates, nothing longer than needed. It makes no object, so that no finalizer runs here.
static int is_utf8(const char *data, Py_ssize_t size) {
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    while (at < end) {
        unsigned char c = *at++;
        if (c < 0x80) continue;
        int more = c >= 0xC2 && c < 0xE0 ? 1 : (c & 0xF0) == 0xE0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 0;
        unsigned char least = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, most = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        if (!more || end - at < more || *at < least || *at > most) return 0;
        for (int i = 1; i < more; i++)
            if ((at[i] & 0xC0) != 0x80) return 0;
        at += more;
    }
    return 1;
}
