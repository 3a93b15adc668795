package headrace

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// route chooses the replica to use: the first one in its list, and after a failure the next one.
//
// A client stays with a replica as long as it answers. Connections are opened on first use, and stay open, because
// another goroutine may still be using one.
type route struct {
	open func(replica string) (*grpc.ClientConn, error)

	mu       sync.Mutex
	replicas []string
	opened   map[string]*grpc.ClientConn
	at       int
	// failures counts consecutive failures since a replica last answered.
	failures int
	closed   bool
}

func newRoute(replicas []string, open func(string) (*grpc.ClientConn, error)) *route {
	return &route{open: open, replicas: replicas, opened: map[string]*grpc.ClientConn{}}
}

// conn is the current connection.
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

// answered records that a server answered, successfully or with its own error.
func (r *route) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = 0
}

// failed records that nobody answered on a connection. Of several calls that fail together, only one switches.
func (r *route) failed(conn *grpc.ClientConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opened[r.replicas[r.at]] == conn {
		r.at = (r.at + 1) % len(r.replicas)
		r.failures++
	}
}

// leadTo uses these replicas from now on, starting with the first.
func (r *route) leadTo(replicas []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replicas, r.at, r.failures = replicas, 0, 0
}

// hasUntried says whether the next replica has not failed since any replica last answered, so it can be tried without
// waiting.
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
