// The part of OpenSSL 3 that the server needs, looked up at run time: no headers, nothing to link.
#ifndef RIG_TLS_H
#define RIG_TLS_H
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
enum { TLS_WANT_READ = 2, TLS_WANT_WRITE = 3, TLS_MODE = 33, TLS_PARTIAL_WRITE = 1, TLS_MOVING_BUFFER = 2, TLS_PEM = 1 };

static struct {
    SSL_CTX *context;
    const void *(*TLS_server_method)(void);
    SSL_CTX *(*SSL_CTX_new)(const void *);
    long (*SSL_CTX_ctrl)(SSL_CTX *, int, long, void *);
    int (*SSL_CTX_use_certificate_chain_file)(SSL_CTX *, const char *);
    int (*SSL_CTX_use_PrivateKey_file)(SSL_CTX *, const char *, int);
    SSL *(*SSL_new)(SSL_CTX *);
    int (*SSL_set_fd)(SSL *, int);
    void (*SSL_set_accept_state)(SSL *);
    int (*SSL_read)(SSL *, void *, int);
    int (*SSL_write)(SSL *, const void *, int);
    int (*SSL_get_error)(const SSL *, int);
    void (*SSL_free)(SSL *);
    void (*ERR_clear_error)(void);
} tls;

static void *tls_symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "server: libssl.so.3 has no %s\n", name);
        exit(1);
    }
    return found;
}

#define TLS_LOAD(name) *(void **)&tls.name = tls_symbol(library, #name)

// `pem` holds certificate chain and private key.
static void tls_open(const char *pem) {
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "server: --tls needs libssl.so.3: %s\n", dlerror());
        exit(3);
    }
    TLS_LOAD(TLS_server_method);
    TLS_LOAD(SSL_CTX_new);
    TLS_LOAD(SSL_CTX_ctrl);
    TLS_LOAD(SSL_CTX_use_certificate_chain_file);
    TLS_LOAD(SSL_CTX_use_PrivateKey_file);
    TLS_LOAD(SSL_new);
    TLS_LOAD(SSL_set_fd);
    TLS_LOAD(SSL_set_accept_state);
    TLS_LOAD(SSL_read);
    TLS_LOAD(SSL_write);
    TLS_LOAD(SSL_get_error);
    TLS_LOAD(SSL_free);
    TLS_LOAD(ERR_clear_error);
    tls.context = tls.SSL_CTX_new(tls.TLS_server_method());
    tls.SSL_CTX_ctrl(tls.context, TLS_MODE, TLS_PARTIAL_WRITE | TLS_MOVING_BUFFER, NULL);
    if (tls.SSL_CTX_use_certificate_chain_file(tls.context, pem) != 1 || tls.SSL_CTX_use_PrivateKey_file(tls.context, pem, TLS_PEM) != 1) {
        fprintf(stderr, "server: %s: no certificate and key\n", pem);
        exit(2);
    }
}
#endif
