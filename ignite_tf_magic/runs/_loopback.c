/* Makes the ports of a run's tasks reachable from their own machine only.

   The servers of TensorFlow, JAX and PyTorch listen on all interfaces, even if their address is 127.0.0.1. LD_PRELOAD
   loads this library into a worker's processes before all others. It replaces `bind`: a bind to all interfaces becomes
   a bind to loopback if its port is in the variable IGNITE_TF_LOOPBACK_PORTS ("40001,40002"). Other binds are unchanged.

   Each bind reads the variable, because a process learns its ports after the library is loaded. The library links no
   other library, so it has no versioned symbols, and one build serves older and newer systems of its architecture.
*/

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LEAST_IN6_LENGTH 24 /* the shortest that the kernel accepts: without the scope */

typedef int bind_function(int, const struct sockaddr *, socklen_t);

union any_address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static int is_named(unsigned port)
{
    const char *text = getenv("IGNITE_TF_LOOPBACK_PORTS");
    unsigned number = 0;

    if (text == NULL || port == 0)
        return 0;
    for (;; text++) {
        if (*text >= '0' && *text <= '9') {
            number = number > 65535 ? number : number * 10 + (unsigned)(*text - '0');
            continue;
        }
        if (number == port)
            return 1;
        if (*text == '\0')
            return 0;
        number = 0;
    }
}

/* Clients connect to 127.0.0.1, so a socket that accepts IPv4, too, gets the IPv4 loopback address. */
static struct in6_addr loopback_of(int descriptor, const struct in6_addr *asked)
{
    struct in6_addr mapped = {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}};
    struct in6_addr own = IN6ADDR_LOOPBACK_INIT;
    int only_6 = 0;
    socklen_t length = sizeof only_6;

    if (IN6_IS_ADDR_UNSPECIFIED(asked) &&
        (getsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &only_6, &length) != 0 || only_6))
        return own;
    return mapped;
}

static int is_wildcard_6(const struct in6_addr *address)
{
    const unsigned char *bytes = address->s6_addr;

    if (IN6_IS_ADDR_UNSPECIFIED(address))
        return 1;
    return IN6_IS_ADDR_V4MAPPED(address) && !bytes[12] && !bytes[13] && !bytes[14] && !bytes[15];
}

/* Replaces the address of all interfaces with the loopback address. Returns false if this bind is not to be changed. */
static int turn_to_loopback(int descriptor, union any_address *address, socklen_t length)
{
    if (address->any.sa_family == AF_INET && length >= sizeof address->in &&
        address->in.sin_addr.s_addr == htonl(INADDR_ANY) && is_named(ntohs(address->in.sin_port))) {
        address->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return 1;
    }
    if (address->any.sa_family == AF_INET6 && length >= LEAST_IN6_LENGTH &&
        is_wildcard_6(&address->in6.sin6_addr) && is_named(ntohs(address->in6.sin6_port))) {
        address->in6.sin6_addr = loopback_of(descriptor, &address->in6.sin6_addr);
        return 1;
    }
    return 0;
}

int bind(int descriptor, const struct sockaddr *asked, socklen_t length)
{
    bind_function *next;
    union any_address address;
    void *found = dlsym(RTLD_NEXT, "bind");

    if (found == NULL) {
        errno = ENOSYS;
        return -1;
    }
    memcpy(&next, &found, sizeof next); /* C cannot cast an object pointer to a function pointer */
    if (asked == NULL || length < sizeof address.any.sa_family || length > sizeof address)
        return next(descriptor, asked, length);
    memset(&address, 0, sizeof address);
    memcpy(&address, asked, length);
    return next(descriptor, turn_to_loopback(descriptor, &address, length) ? &address.any : asked, length);
}
