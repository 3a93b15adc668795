package headrace_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
)

// network is a network in memory: servers by address.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
}

func newNetwork() *network { return &network{listeners: map[string]*bufconn.Listener{}} }

// serve starts a server at an address; the function that it returns stops it.
func (n *network) serve(t *testing.T, address string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(listener) }()
	n.mu.Lock()
	n.listeners[address] = listener
	n.mu.Unlock()
	stop = func() {
		n.mu.Lock()
		if n.listeners[address] == listener {
			delete(n.listeners, address)
		}
		n.mu.Unlock()
		server.Stop()
	}
	t.Cleanup(stop)
	return stop
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	listener := n.listeners[address]
	n.mu.Unlock()
	if listener == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errRefused{}}
	}
	return listener.DialContext(ctx)
}

type errRefused struct{}

func (errRefused) Error() string { return "connect: connection refused" }

func (n *network) client(t *testing.T, address string, options ...headrace.Option) *headrace.Client {
	t.Helper()
	options = append([]headrace.Option{
		headrace.WithDialOptions(grpc.WithContextDialer(n.dial)),
		headrace.WithTimeout(10 * time.Second), headrace.WithConnectTimeout(2 * time.Second),
	}, options...)
	client, err := headrace.New(address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// scheduler answers calls as a test says, and remembers the requests.
type scheduler struct {
	pb.UnimplementedStudyServiceServer
	get     func(context.Context, *pb.GetStudyRequest) (*pb.Study, error)
	create  func(*pb.CreateStudyRequest) error
	suggest func(*pb.SuggestTrialRequest) (*pb.SuggestTrialResponse, error)
	report  func(*pb.ReportTrialRequest) (*pb.ReportTrialResponse, error)
	renew   func(*pb.RenewTrialRequest) (*pb.RenewTrialResponse, error)
	list    func(*pb.ListTrialsRequest) (*pb.ListTrialsResponse, error)
	watch   func(*pb.WatchStudyRequest, grpc.ServerStreamingServer[pb.WatchStudyResponse]) error
}

func (s *scheduler) register(server *grpc.Server) { pb.RegisterStudyServiceServer(server, s) }

func (s *scheduler) GetStudy(ctx context.Context, r *pb.GetStudyRequest) (*pb.GetStudyResponse, error) {
	study, err := s.get(ctx, r)
	return &pb.GetStudyResponse{Study: study}, err
}

func (s *scheduler) CreateStudy(_ context.Context, r *pb.CreateStudyRequest) (*pb.CreateStudyResponse, error) {
	return &pb.CreateStudyResponse{Study: &pb.Study{Name: "studies/" + r.GetStudyId()}}, s.create(r)
}

func (s *scheduler) RenewTrial(_ context.Context, r *pb.RenewTrialRequest) (*pb.RenewTrialResponse, error) {
	return s.renew(r)
}

func (s *scheduler) SuggestTrial(_ context.Context, r *pb.SuggestTrialRequest) (*pb.SuggestTrialResponse, error) {
	return s.suggest(r)
}

func (s *scheduler) ReportTrial(_ context.Context, r *pb.ReportTrialRequest) (*pb.ReportTrialResponse, error) {
	return s.report(r)
}

func (s *scheduler) ListTrials(_ context.Context, r *pb.ListTrialsRequest) (*pb.ListTrialsResponse, error) {
	return s.list(r)
}

func (s *scheduler) WatchStudy(
	r *pb.WatchStudyRequest, stream grpc.ServerStreamingServer[pb.WatchStudyResponse],
) error {
	return s.watch(r, stream)
}

// digits is a scheduler with one active study.
func digits() *scheduler {
	return &scheduler{get: func(_ context.Context, r *pb.GetStudyRequest) (*pb.Study, error) {
		return &pb.Study{Name: r.GetName(), State: pb.StudyState_STUDY_STATE_ACTIVE}, nil
	}}
}

// failure is an error in the form that Headrace's servers send.
func failure(code codes.Code, reason, message, remedy string, fields ...*errdetails.BadRequest_FieldViolation) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Domain: "headrace", Reason: reason, Metadata: map[string]string{"remedy": remedy},
	}}
	if len(fields) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: fields})
	}
	made, err := status.New(code, message).WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return made.Err()
}
