package headrace

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// route knows which replica to talk to: the first one of its list, and after a failure there the next one.
//
// A client stays with a replica for as long as that answers. Connections are opened when their turn comes, and stay
// open: another goroutine may still be at work on one.
type route struct {
	open func(replica string) (*grpc.ClientConn, error)

	mu       sync.Mutex
	replicas []string
	opened   map[string]*grpc.ClientConn
	at       int
	// failures counts those in a row, since anybody answered.
	failures int
	closed   bool
}

func newRoute(replicas []string, open func(string) (*grpc.ClientConn, error)) *route {
	return &route{open: open, replicas: replicas, opened: map[string]*grpc.ClientConn{}}
}

// conn is the connection to use now.
func (r *route) conn() (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, &Error{
			Reason: Cancelled, Code: codes.Canceled, Message: "This client is closed", Remedy: "Make another one.",
		}
	}
	replica := r.replicas[r.at]
	if conn, ok := r.opened[replica]; ok {
		return conn, nil
	}
	conn, err := r.open(replica)
	if err != nil {
		return nil, invalid("address", replica, "cannot be used: "+err.Error(), addressRemedy(replica))
	}
	r.opened[replica] = conn
	return conn, nil
}

// answered learns that a server answered, well or with an error of its own.
func (r *route) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = 0
}

// failed learns that nobody answered on a connection. Of several calls that fail together, one moves on.
func (r *route) failed(conn *grpc.ClientConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opened[r.replicas[r.at]] == conn {
		r.at = (r.at + 1) % len(r.replicas)
		r.failures++
	}
}

// leadTo talks to these replicas from now on, the first one first.
func (r *route) leadTo(replicas []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replicas, r.at, r.failures = replicas, 0, 0
}

// hasUntried says whether the next replica has not failed since anybody answered: no reason to wait before it is tried.
func (r *route) hasUntried() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return 0 < r.failures && r.failures < len(r.replicas)
}

func (r *route) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	var first error
	for _, conn := range r.opened {
		if err := conn.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
