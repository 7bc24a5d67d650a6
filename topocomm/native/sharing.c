/* Flows that share links max-min fairly; in the order of link_sharing.py, so that sums round alike. */
#include "sharing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SCANNED = 8 }; /* known flows looked through for each one reached, rather than sorted */

int open_sharing(Sharing *s, int64_t flows, int64_t routes, int64_t links, const double *link_rate) {
    s->rate = calloc((size_t)flows + 1, sizeof *s->rate);
    s->held = malloc(((size_t)flows + 1) * sizeof *s->held);
    s->slot = malloc(((size_t)flows + 1) * sizeof *s->slot);
    s->order = malloc(((size_t)flows + 1) * sizeof *s->order);
    s->hit = calloc((size_t)flows + 1, 1);
    s->link = calloc((size_t)links + 1, sizeof *s->link);
    s->alone = malloc(((size_t)routes + 1) * sizeof *s->alone);
    if (s->rate == NULL || s->held == NULL || s->slot == NULL || s->order == NULL || s->hit == NULL ||
        s->link == NULL || s->alone == NULL)
        return -1;
    memset(s->slot, -1, ((size_t)flows + 1) * sizeof *s->slot);
    for (int64_t link = 0; link < links; link++)
        s->link[link].rate = link_rate[link], s->link[link].first = -1;
    s->hops = 1;
    for (int64_t route = 0; route < routes; route++) {
        int64_t first = s->starts[route], end = s->starts[route + 1];
        s->alone[route] = INFINITY;
        for (int64_t at = first; at < end; at++)
            if (link_rate[s->links[at]] < s->alone[route])
                s->alone[route] = link_rate[s->links[at]];
        if (end - first > s->hops)
            s->hops = end - first;
    }
    return 0;
}

void close_sharing(Sharing *s) {
    void *all[] = {s->rate, s->held, s->slot, s->order, s->hit, s->link, s->alone, s->on,
                   s->free_slots.at, s->in_order.at, s->known.at, s->reached.at, s->touched.at};
    for (unsigned each = 0; each < sizeof all / sizeof *all; each++)
        free(all[each]);
}

/* Twice as many flows may be under way: 0, or -1 without memory. */
static int add_slots(Sharing *s) {
    int64_t slots = s->slots ? 2 * s->slots : 64;
    if (slots * s->hops > INT32_MAX || reserve(&s->free_slots, slots) < 0)
        return -1;
    OnLink *on = realloc(s->on, (size_t)(slots * s->hops) * sizeof *on);
    if (on == NULL)
        return -1;
    s->on = on;
    for (int64_t slot = slots - 1; slot >= s->slots; slot--)
        s->free_slots.at[s->free_slots.count++] = (int32_t)slot;
    s->slots = slots;
    return 0;
}

#define EACH_LINK(s, flow, at)                                                                                         \
    for (const int64_t *at = (s)->links + (s)->starts[(s)->route_of[flow]],                                            \
                       *at##_end = (s)->links + (s)->starts[(s)->route_of[flow] + 1];                                  \
         at < at##_end; at++)

/* Put a flow on its links: 0, or -1 without memory. */
static int join(Sharing *s, int32_t flow) {
    if ((!s->free_slots.count && add_slots(s) < 0) || add(&s->known, flow) < 0 || add(&s->in_order, flow) < 0)
        return -1;
    int32_t slot = s->slot[flow] = s->free_slots.at[--s->free_slots.count], place = slot * (int32_t)s->hops;
    s->order[flow] = (int32_t)s->in_order.count - 1;
    s->under_way++;
    EACH_LINK(s, flow, at) {
        SharedLink *link = &s->link[*at];
        s->on[place] = (OnLink){flow, link->first, -1};
        if (link->first >= 0)
            s->on[link->first].prev = place;
        link->first = place++;
        link->users++;
    }
    return 0;
}

static void quit(Sharing *s, int32_t flow) {
    int32_t place = s->slot[flow] * (int32_t)s->hops;
    EACH_LINK(s, flow, at) {
        OnLink *on = &s->on[place++];
        if (on->prev >= 0)
            s->on[on->prev].next = on->next;
        else
            s->link[*at].first = on->next;
        if (on->next >= 0)
            s->on[on->next].prev = on->prev;
        s->link[*at].users--;
    }
    s->free_slots.at[s->free_slots.count++] = s->slot[flow]; /* room is there for all */
    s->slot[flow] = -1;
    s->under_way--;
}

/* Note a link on which rates may change, once: 0, or -1 without memory. */
static int touch(Sharing *s, int64_t link) {
    if (s->link[link].reached)
        return 0;
    s->link[link].reached = 1;
    return add(&s->touched, (int32_t)link);
}

/* List the flows that touched links reach over links in common, and all these links: 0, or -1 without memory. */
static int reach(Sharing *s) {
    s->reached.count = 0;
    for (int64_t each = 0; each < s->touched.count; each++)
        for (int32_t on = s->link[s->touched.at[each]].first; on >= 0; on = s->on[on].next) {
            int32_t flow = s->on[on].flow;
            if (s->hit[flow])
                continue;
            s->hit[flow] = 1;
            if (add(&s->reached, flow) < 0)
                return -1;
            EACH_LINK(s, flow, at) {
                if (touch(s, *at) < 0)
                    return -1;
            }
        }
    return 0;
}

/* Sort the flows that were reached as they started, of many by looking through all that are known. */
static void sort_reached(Sharing *s) {
    List *reached = &s->reached, *known = &s->known;
    if (reached->count * MOST_SCANNED < s->under_way) {
        for (int64_t each = 0; each < reached->count; each++)
            reached->at[each] = s->order[reached->at[each]];
        sort_numbers(reached->at, reached->count);
        for (int64_t each = 0; each < reached->count; each++)
            reached->at[each] = s->in_order.at[reached->at[each]];
        return;
    }
    int64_t kept = 0, found = 0;
    for (int64_t each = 0; each < known->count; each++) {
        int32_t flow = known->at[each];
        if (s->slot[flow] < 0)
            continue;
        known->at[kept++] = flow;
        if (s->hit[flow])
            reached->at[found++] = flow;
    }
    known->count = kept;
}

/* Set what each flow is held to by the tightest of its links, and the least of that on each link. */
static void hold_flows(Sharing *s, const int32_t *flows, int64_t count) {
    for (int64_t each = 0; each < s->touched.count; each++) {
        SharedLink *link = &s->link[s->touched.at[each]];
        link->share = link->sharers > 0 ? link->left / (double)link->sharers : INFINITY;
        link->least = INFINITY;
        link->taken = 0.0;
    }
    for (int64_t each = 0; each < count; each++) {
        double held = INFINITY;
        EACH_LINK(s, flows[each], at) {
            if (s->link[*at].share < held)
                held = s->link[*at].share;
        }
        if (s->most != NULL && s->most[flows[each]] < held)
            held = s->most[flows[each]];
        s->held[flows[each]] = held;
        EACH_LINK(s, flows[each], at) {
            if (held < s->link[*at].least)
                s->link[*at].least = held;
        }
    }
}

/* Whether a flow has its rate: at its limit, or on a link of which no flow is held to less elsewhere. */
static int is_done(const Sharing *s, int32_t flow) {
    if (s->most != NULL && s->held[flow] == s->most[flow])
        return 1;
    EACH_LINK(s, flow, at) {
        if (s->link[*at].least >= s->link[*at].share)
            return 1;
    }
    return 0;
}

/* Work out `held`, the max-min fair rate of each flow that was reached, in the passes of max_min_rates. */
static void share_links(Sharing *s, int32_t *flows, int64_t count) {
    for (int64_t each = 0; each < s->touched.count; each++) {
        SharedLink *link = &s->link[s->touched.at[each]];
        link->left = link->rate, link->sharers = link->users;
    }
    while (count) {
        int64_t kept = 0;
        hold_flows(s, flows, count);
        for (int64_t each = 0; each < count; each++) {
            int32_t flow = flows[each];
            if (!is_done(s, flow)) {
                flows[kept++] = flow;
                continue;
            }
            EACH_LINK(s, flow, at) {
                s->link[*at].sharers--;
                s->link[*at].taken += s->held[flow];
            }
        }
        for (int64_t each = 0; each < s->touched.count; each++) {
            SharedLink *link = &s->link[s->touched.at[each]];
            link->left -= link->taken;
        }
        count = kept;
    }
}

/* Set the rates of all flows that touched links reach: 0, or -1 without memory. */
static int share(Sharing *s, List *changed) {
    if (reach(s) < 0 || reserve(changed, changed->count + s->reached.count) < 0)
        return -1;
    sort_reached(s);
    /* `changed` has the flows until each is done, then those of another rate */
    int32_t *flows = changed->at + changed->count;
    if (s->reached.count)
        memcpy(flows, s->reached.at, (size_t)s->reached.count * sizeof *flows);
    share_links(s, flows, s->reached.count);
    for (int64_t each = 0; each < s->reached.count; each++) {
        int32_t flow = s->reached.at[each];
        s->hit[flow] = 0;
        if (s->held[flow] != s->rate[flow])
            changed->at[changed->count++] = flow;
        s->rate[flow] = s->held[flow];
    }
    return 0;
}

/* Whether several flows are on a link of this one, which are touched then; -1 without memory. */
static int shares(Sharing *s, int32_t flow) {
    int several = 0;
    EACH_LINK(s, flow, at) {
        if (s->link[*at].users > 1) {
            several = 1;
            if (touch(s, *at) < 0)
                return -1;
        }
    }
    return several;
}

int change_flows(Sharing *s, const List *started, const List *ended, List *changed) {
    int state = 0;
    changed->count = s->touched.count = 0;
    for (int64_t each = 0; each < ended->count; each++)
        quit(s, ended->at[each]);
    for (int64_t each = 0; each < ended->count && state >= 0; each++)
        EACH_LINK(s, ended->at[each], at) {
            if (s->link[*at].users > 0 && touch(s, *at) < 0)
                state = -1;
        }
    for (int64_t each = 0; each < started->count && state >= 0; each++)
        state = join(s, started->at[each]);
    for (int64_t each = 0; each < started->count && state >= 0; each++) {
        int32_t flow = started->at[each];
        if ((state = shares(s, flow)) != 0)
            continue;
        s->rate[flow] = s->alone[s->route_of[flow]];
        if (s->most != NULL && s->most[flow] < s->rate[flow])
            s->rate[flow] = s->most[flow];
        state = add(changed, flow);
    }
    if (state >= 0 && s->touched.count)
        state = share(s, changed);
    for (int64_t each = 0; each < s->touched.count; each++)
        s->link[s->touched.at[each]].reached = 0;
    return state < 0 ? -1 : 0;
}
