package headrace

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	attemptTimeout = 15 * time.Second
	firstPause     = 200 * time.Millisecond
	longestPause   = 2 * time.Second
)

// transport makes calls to one kind of server, with retries and fail-over.
type transport struct {
	settings settings
	server   server
	route    *route
	// attempt is the deadline of one attempt. If a server hangs, there is another attempt within the call's timeout.
	attempt time.Duration
	secure  bool
	// answeredOnce says whether a server ever answered.
	answeredOnce atomic.Bool

	mu     sync.Mutex
	target target
}

func newTransport(t target, s settings, kind server) (*transport, error) {
	config, err := s.tlsConfig(t)
	if err != nil {
		return nil, err
	}
	s.token = strings.TrimSpace(s.token) // files of secrets often end with a line
	if strings.ContainsFunc(s.token, func(letter rune) bool { return letter < ' ' || letter > '~' }) {
		return nil, invalid("token", "", "holds a line end, or another character that no header may have",
			"Use the token alone, in printable ASCII. It may come from HEADRACE_TOKEN.")
	}
	if s.token != "" && config == nil && !t.local() {
		return nil, invalid("token", "", "would cross the network in clear", "Use TLS: tls:// before the address.")
	}
	kind.address = t.String()
	options := dialOptions(s, config != nil)
	if config != nil {
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	} else {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	options = append(options, s.dialer...)
	open := func(replica string) (*grpc.ClientConn, error) {
		return grpc.NewClient(grpcTarget(replica), options...)
	}
	return &transport{
		settings: s, server: kind, target: t, route: newRoute(t.replicas, open), attempt: attemptTimeout,
		secure: config != nil,
	}, nil
}

func dialOptions(s settings, secure bool) []grpc.DialOption {
	options := []grpc.DialOption{
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		// A restarting server is back within seconds; grpc-go's own pause grows to two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestPause},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	}
	if s.token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{token: s.token, secure: secure}))
	}
	return options
}

// grpcTarget leaves names to the dialer, so that each connection resolves its host again.
func grpcTarget(replica string) string {
	if len(replica) > 5 && replica[:5] == "unix:" {
		return replica
	}
	return "passthrough:///" + replica
}

// call makes one call, repeatedly with the same request, until there is an answer, an error that repeating does not
// fix, or no time left.
func call[Stub, Request, Response any](
	ctx context.Context,
	t *transport,
	stub func(grpc.ClientConnInterface) Stub,
	method func(Stub, context.Context, Request, ...grpc.CallOption) (Response, error),
	request Request,
) (Response, error) {
	var none Response
	started := time.Now()
	for attempt := 0; ; attempt++ {
		if ctx.Err() != nil {
			return none, ended(ctx)
		}
		conn, err := t.route.conn()
		if err != nil {
			return none, err
		}
		limited, cancel := context.WithTimeout(ctx, t.attemptTimeout(time.Since(started)))
		response, err := method(stub(conn), limited, request)
		cancel()
		failure := t.note(ctx, conn, err)
		if failure == nil {
			return response, nil
		}
		if !failure.Retryable() || ctx.Err() != nil {
			return none, failure
		}
		pause := t.pause(attempt)
		if time.Since(started)+pause >= t.budget() {
			return none, failure
		}
		if !sleep(ctx, pause) {
			return none, ended(ctx)
		}
	}
}

// budget is the time for one call, all attempts together.
func (t *transport) budget() time.Duration {
	if t.answeredOnce.Load() {
		return t.settings.timeout
	}
	return t.settings.connectTimeout
}

// attemptTimeout is the deadline of an attempt that starts now. Until one of several replicas answers, it leaves time
// for the others.
func (t *transport) attemptTimeout(elapsed time.Duration) time.Duration {
	longest := t.attempt
	t.mu.Lock()
	replicas := time.Duration(len(t.target.replicas))
	t.mu.Unlock()
	if replicas > 1 && !t.answeredOnce.Load() {
		longest = t.settings.connectTimeout / replicas
	}
	return max(50*time.Millisecond, min(longest, t.settings.timeout-elapsed))
}

// pause is how long to wait before the next attempt: random, so that many clients do not return together.
func (t *transport) pause(attempt int) time.Duration {
	if t.route.hasUntried() {
		return 0
	}
	most := min(longestPause, firstPause<<min(attempt, 10))
	return time.Duration(rand.Int64N(int64(most))) + time.Millisecond
}

// note records the result of a call on a connection, and returns its error; nil on success.
func (t *transport) note(ctx context.Context, conn *grpc.ClientConn, err error) *Error {
	if err == nil {
		t.answeredOnce.Store(true)
		t.route.answered()
		return nil
	}
	failure := t.failure(ctx, err)
	switch failure.Reason {
	case Unreachable, Deadline:
		if failure.cause != nil {
			break // the caller's own deadline says nothing about the server
		}
		t.route.failed(conn)
		conn.ResetConnectBackoff()
		t.lookAgain()
	case Cancelled:
	default:
		t.answeredOnce.Store(true)
		t.route.answered()
	}
	return failure
}

// failure is the error as callers get it.
func (t *transport) failure(ctx context.Context, err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	failure := t.server.errorOf(ctx, err)
	if failure.Reason == Deadline && failure.cause == nil && !t.answeredOnce.Load() {
		silent := *failure // a silent address, not a slow server
		silent.Reason, silent.Remedy = Unreachable, t.server.start
		silent.Message = "No Headrace " + t.server.kind + " answers at " + t.server.address
		return &silent
	}
	return failure
}

// lookAgain follows `headrace up` to another port, if its home named the address.
func (t *transport) lookAgain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.target.again()
	inClear := t.settings.token != "" && !t.secure && !now.local()
	if !slices.Equal(now.replicas, t.target.replicas) && !inClear {
		t.target = now
		t.route.leadTo(now.replicas)
	}
}

// sleep waits; false if the context ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
