package trial

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	runtimeVariable = "HEADRACE_RUNTIME"
	leaseVariable   = "HEADRACE_LEASE_ID"
	rankVariable    = "HEADRACE_RANK"
	bundleVariable  = "HEADRACE_BUNDLE"

	// callTimeout is long: an attach may wait for a checkpoint, a report for a scheduler that is being restarted.
	callTimeout = 10 * time.Minute
	// unreachableFor is how long calls to a daemon that does not answer are retried.
	unreachableFor = 15 * time.Second
	// toldBytes is how much of an error's text, and of a traceback, is reported.
	toldBytes = 16 << 10
)

// runtime is the other side of a trial. Every call is safe to repeat.
type runtime interface {
	attach(ctx context.Context) (*pb.AttachResponse, error)
	restored(ctx context.Context, took time.Duration) error
	// report returns when there is a decision.
	report(ctx context.Context, report *pb.ReportRequest) (headrace.Decision, error)
	// finish reports how the program ended; an empty text means success.
	finish(ctx context.Context, failure, traceback string) error
	close() error
}

// DaemonGoneError is returned if the worker daemon no longer answers. The program should exit with status 75, which
// Main does.
type DaemonGoneError struct {
	Address string
	cause   error
}

// Error includes the address.
func (e *DaemonGoneError) Error() string {
	return fmt.Sprintf("the worker at %s does not answer any more (%v)", e.Address, status.Convert(e.cause).Message())
}

// Unwrap is the error of gRPC.
func (e *DaemonGoneError) Unwrap() error { return e.cause }

// RefusedError is returned if the worker daemon rejects a message of the trial: a step past the budget, or a trial
// that somebody else holds by now.
type RefusedError struct {
	Message string
	Code    codes.Code
}

// Error is the daemon's text.
func (e *RefusedError) Error() string { return "the worker refuses the trial's call: " + e.Message }

// daemon is the connection to the worker daemon that started this process: unary gRPC over its Unix socket.
type daemon struct {
	address string
	lease   string
	conn    *grpc.ClientConn
	stub    pb.TrialRuntimeServiceClient
}

// fromEnvironment connects to the daemon; nil if no worker started this process.
func fromEnvironment() (*daemon, error) {
	address, lease := os.Getenv(runtimeVariable), os.Getenv(leaseVariable)
	if address == "" && lease == "" {
		return nil, nil
	}
	if address == "" || lease == "" {
		return nil, fmt.Errorf("only one of %s and %s is set; a worker sets both", runtimeVariable, leaseVariable)
	}
	for _, name := range []string{rankVariable, bundleVariable} {
		if os.Getenv(name) != "" {
			return nil, fmt.Errorf("%s is set: a Go program is one process of one trial; "+
				"take `processes` and `fuse` out of the study", name)
		}
	}
	return connect(address, lease)
}

func connect(address, lease string, options ...grpc.DialOption) (*daemon, error) {
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
	}, options...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, fmt.Errorf("%s=%s is no address: %w", runtimeVariable, address, err)
	}
	return &daemon{address: address, lease: lease, conn: conn, stub: pb.NewTrialRuntimeServiceClient(conn)}, nil
}

func (d *daemon) attach(ctx context.Context) (*pb.AttachResponse, error) {
	return tell(ctx, d, d.stub.Attach, &pb.AttachRequest{LeaseId: d.lease})
}

func (d *daemon) restored(ctx context.Context, took time.Duration) error {
	_, err := tell(ctx, d, d.stub.Restored, &pb.RestoredRequest{LeaseId: d.lease, ReadTime: durationpb.New(took)})
	return err
}

func (d *daemon) report(ctx context.Context, report *pb.ReportRequest) (headrace.Decision, error) {
	report.LeaseId = d.lease
	response, err := tell(ctx, d, d.stub.Report, report)
	if err != nil {
		return headrace.Decision{}, err
	}
	return headrace.DecisionOf(response.GetDecision())
}

func (d *daemon) finish(ctx context.Context, failure, traceback string) error {
	_, err := tell(ctx, d, d.stub.Finish, &pb.FinishRequest{
		LeaseId: d.lease, Error: head(failure), Traceback: tail(traceback),
	})
	return err
}

func (d *daemon) close() error { return d.conn.Close() }

// tell calls until there is an answer. A call that runs into its deadline is waiting for a decision, and is repeated
// unchanged: its sequence shows that it is the same.
func tell[Request, Response any](
	ctx context.Context,
	d *daemon,
	method func(context.Context, Request, ...grpc.CallOption) (Response, error),
	request Request,
) (Response, error) {
	var none Response
	var silentSince time.Time
	for pause := 50 * time.Millisecond; ; {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		response, err := method(limited, request)
		cancel()
		switch {
		case err == nil:
			return response, nil
		case ctx.Err() != nil:
			return none, ctx.Err()
		case status.Code(err) == codes.DeadlineExceeded:
			silentSince = time.Time{} // the daemon is alive
			continue
		case status.Code(err) != codes.Unavailable:
			return none, &RefusedError{Message: status.Convert(err).Message(), Code: status.Code(err)}
		}
		if silentSince.IsZero() {
			silentSince = time.Now()
		}
		if time.Since(silentSince) > unreachableFor {
			return none, &DaemonGoneError{Address: d.address, cause: err}
		}
		d.conn.ResetConnectBackoff()
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-time.After(pause):
			pause = min(time.Second, 2*pause)
		}
	}
}

func head(text string) string { return valid(text[:min(len(text), toldBytes)]) }

func tail(text string) string { return valid(text[max(0, len(text)-toldBytes):]) }

// valid replaces invalid UTF-8, such as a truncated letter, because it could not be sent in a message.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
