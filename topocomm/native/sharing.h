/* Flows that share links max-min fairly: planning/cost/link_sharing.py says by which rules. */
#ifndef TOPOCOMM_SHARING_H
#define TOPOCOMM_SHARING_H

#include "numbers.h"

typedef struct { /* a flow on a link, among all flows under way on that link */
    int32_t flow, next, prev;
} OnLink;

typedef struct {
    double rate, left, share, least, taken; /* bytes per us; from `left` on while rates are worked out */
    int64_t users, sharers;                 /* flows under way; those of them without a rate yet */
    int32_t first;                          /* the first OnLink */
    int reached;
} SharedLink;

typedef struct {
    const int64_t *starts, *links; /* route i crosses links[starts[i]:starts[i + 1]] */
    const int32_t *route_of;       /* of each flow */
    const double *most;            /* bytes per us of each flow at most; NULL: no limits */
    double *rate, *held;           /* of each flow: the present rate, or the last; while it is worked out */
    SharedLink *link;
    double *alone; /* the rate of each route alone */
    int32_t *slot; /* of each flow under way; -1 of others */
    int32_t *order; /* of each flow, how many started before it */
    uint8_t *hit;
    OnLink *on; /* of each slot, one for each of `hops` links */
    List in_order, known; /* all flows that started, in their order; those but some that ended */
    List free_slots, reached, touched;
    int64_t hops, slots, under_way;
} Sharing;

/* Prepare flows on routes, none under way; columns are set: 0, or -1 without memory. `close_sharing` follows always. */
int open_sharing(Sharing *sharing, int64_t flows, int64_t routes, int64_t links, const double *link_rate);
void close_sharing(Sharing *sharing);

/* Start and end flows at one instant, and list those under way whose rate is another: 0, or -1 without memory. */
int change_flows(Sharing *sharing, const List *started, const List *ended, List *changed);

#endif
