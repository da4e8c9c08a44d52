/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One epoll, edge by edge: what it tells is told once, and remembered by the link until a call on
 * it has found nothing more. So nothing is changed in the kernel while links fill and empty, and an
 * idle link costs nothing at all.
 *
 * To ask costs a system call, and then the data another. So a link that is the only one is tried at
 * each turn, and nobody is asked: a round trip between two ranks costs what it would if there were
 * no poller. What epoll would have told about that link stays there meanwhile; to collect before
 * sleeping takes it away, or the sleeper would wake for nothing.
 */
#include "link/poller.h"

#include "alloc.h"

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS_A_CALL 32

struct horon_poller {
    const struct horon_owner *owner;
    int epoll_fd;
    int count;               /* links that are watched */
    struct horon_link *last; /* gave something last; NULL: none has yet */
};

horon_status_t horon_poller_create(const struct horon_owner *owner,
                                   struct horon_poller **poller_out, struct horon_error *error)
{
    struct horon_poller *poller = horon_zalloc(1, sizeof *poller);
    if (!poller)
        return horon_error_set(error, HORON_ERR_MEMORY, "no memory to watch connections");
    poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (poller->epoll_fd < 0) {
        horon_free(poller);
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "no descriptor to watch connections with");
    }
    poller->owner = owner;
    *poller_out = poller;
    return HORON_OK;
}

void horon_poller_destroy(struct horon_poller *poller)
{
    if (!poller)
        return;
    assert(poller->count == 0);
    close(poller->epoll_fd);
    horon_free(poller);
}

void horon_poller_close_in_child(struct horon_poller *poller)
{
    if (poller)
        close(poller->epoll_fd);
}

static horon_status_t watch(struct horon_poller *poller, int descriptor, uint32_t events,
                            struct horon_link *link, struct horon_error *error)
{
    struct epoll_event event = {.events = events | EPOLLET, .data.ptr = link};
    if (epoll_ctl(poller->epoll_fd, EPOLL_CTL_ADD, descriptor, &event) != 0)
        return horon_error_set_errno(error, HORON_ERR_SYSTEM, errno,
                                     "a connection cannot be watched");
    poller->count++;
    return HORON_OK;
}

horon_status_t horon_poller_add(struct horon_poller *poller, struct horon_link *link,
                                struct horon_error *error)
{
    const int descriptor = link->ops->descriptor(link);
    if (descriptor < 0)
        return HORON_OK;
    const horon_status_t status =
        watch(poller, descriptor, EPOLLIN | EPOLLOUT | EPOLLRDHUP, link, error);
    if (status == HORON_OK)
        link->ops->found(link, 0); /* what is there already is told like everything else */
    return status;
}

horon_status_t horon_poller_add_descriptor(struct horon_poller *poller, int descriptor,
                                           struct horon_error *error)
{
    return watch(poller, descriptor, EPOLLIN, NULL, error);
}

void horon_poller_remove_descriptor(struct horon_poller *poller, int descriptor)
{
    const int failed = epoll_ctl(poller->epoll_fd, EPOLL_CTL_DEL, descriptor, NULL);
    assert(!failed); /* it was added */
    (void)failed;
    assert(poller->count > 0);
    poller->count--;
}

void horon_poller_remove(struct horon_poller *poller, struct horon_link *link)
{
    const int descriptor = link->ops->descriptor(link);
    if (descriptor < 0)
        return;
    horon_poller_remove_descriptor(poller, descriptor);
    if (poller->last == link)
        poller->last = NULL;
}

static unsigned bits_of(uint32_t events)
{
    const bool over = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    return (events & EPOLLIN ? HORON_LINK_READ : 0) | (events & EPOLLOUT ? HORON_LINK_WRITE : 0) |
           (over ? HORON_LINK_READ | HORON_LINK_WRITE | HORON_LINK_END : 0);
}

bool horon_poller_collect(struct horon_poller *poller)
{
    struct epoll_event events[EVENTS_A_CALL];
    bool any = false;
    HORON_ASSERT_OWNER(poller->owner);
    for (int left = poller->count; left > 0; left -= EVENTS_A_CALL) {
        const int count = epoll_wait(poller->epoll_fd, events, EVENTS_A_CALL, 0);
        for (int i = 0; i < count; i++) {
            struct horon_link *link = events[i].data.ptr;
            any = true;
            if (!link)
                continue;
            link->ops->found(link, bits_of(events[i].events));
            if (events[i].events & EPOLLIN)
                poller->last = link;
        }
        if (count <
            EVENTS_A_CALL) /* an interrupted call counts as none: the next turn asks again */
            break;
    }
    return any;
}

void horon_poller_look(struct horon_poller *poller)
{
    HORON_ASSERT_OWNER(poller->owner);
    if (poller->last && poller->count == 1)
        poller->last->ops->found(poller->last, HORON_LINK_READ | HORON_LINK_WRITE);
    else if (poller->count > 0)
        horon_poller_collect(poller);
}

int horon_poller_descriptor(const struct horon_poller *poller)
{
    return poller->epoll_fd;
}
