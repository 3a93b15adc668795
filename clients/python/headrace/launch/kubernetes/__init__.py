"""Workers from Kubernetes: one Job for each seat.

**Seats.** The Job of seat 3 is `headrace-NAME-3`, and the API server has one object of a name: the second of two loops
that fill a seat is answered 409 (exists). The Job has one pod and no retries (`backoffLimit: 0`), so a seat never has
two workers. A pod that is evicted ends its Job, and the next turn fills the seat again.

**Names and tokens.** A worker's name is its pod's, which no other pod ever has. The pod mounts the secret
`headrace-NAME-3-XXXXXX`, whose end is drawn for each Job, and its container starts when that exists. The loop creates
the secret when the pod has a node, with a token for the pod's name alone, and replaces it while the container has not
started and the token is about to expire (a large image). The secret belongs to the Job, and is deleted with it.

**The end of a Job.** It stays for `ttlSecondsAfterFinished`, for its log, unless its seat is needed before: then it is
deleted with its pod, and a later turn fills the seat, when the name is free.

What can go wrong:

    an answer is lost (timeout, 500, 429)   the request is repeated; a create that was carried out is answered 409
    the list's place expired (410)          the list starts again; no watch is kept between turns
    the API server is slow, or away         each call has a time limit; the turn fails, the next one tries again
    401                                     a credential plugin logs in again, once; else an error
    403                                     an error: the role, the quota or a policy
    `kubectl delete job`                    its pod holds the seat until it has ended
    a name stays taken                      another free seat is filled; an error says by what, if that lasts
    a pod never gets a node                 its Job is pending, with the scheduler's reason; nothing is cancelled
    a second loop delivers a token          its update is answered 409, and its token is revoked
"""
