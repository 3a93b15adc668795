package headrace_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestARepeatCarriesTheSameRequest(t *testing.T) {
	net, fake := newNetwork(), digits()
	var ids []string
	fake.create = func(r *pb.CreateStudyRequest) error {
		if ids = append(ids, r.GetRequestId()); len(ids) < 3 {
			return failure(codes.Unavailable, "DATABASE_UNAVAILABLE", "Postgres is away", "Wait.")
		}
		return nil
	}
	net.serve(t, "a:1", fake.register)
	client := net.client(t, "a:1")
	if _, err := client.CreateStudy(t.Context(), "digits", &pb.StudySpec{}); err != nil {
		t.Fatal(err)
	}
	if len(ids) != 3 || ids[0] == "" || ids[0] != ids[1] || ids[1] != ids[2] {
		t.Fatalf("request ids %q, want three equal ones", ids)
	}
	if _, err := client.CreateStudy(t.Context(), "other", &pb.StudySpec{}); err != nil {
		t.Fatal(err)
	}
	if ids[3] == ids[0] {
		t.Fatal("another call has the same request id")
	}
}

func TestTheNextSchedulerAnswersWhenOneIsGone(t *testing.T) {
	net := newNetwork()
	stop := net.serve(t, "a:1", digits().register)
	net.serve(t, "b:2", digits().register)
	client := net.client(t, "a:1,b:2")
	for range 2 {
		began := time.Now()
		if _, err := client.Study("digits").Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Fatalf("the call took %v", took)
		}
		stop()
	}
}

func TestErrorsAreTyped(t *testing.T) {
	net, fake := newNetwork(), digits()
	fake.create = func(*pb.CreateStudyRequest) error {
		return failure(codes.InvalidArgument, "INVALID_FIELD", "2 fields are invalid", "Correct the named fields.",
			&errdetails.BadRequest_FieldViolation{Field: "space.lr.low", Description: "must be above 0\n-1.0\nUse a positive bound."},
			&errdetails.BadRequest_FieldViolation{Field: "trials", Description: "must be at least 1"})
	}
	net.serve(t, "a:1", fake.register)
	_, err := net.client(t, "a:1").CreateStudy(t.Context(), "digits", &pb.StudySpec{})
	var found *headrace.Error
	if !errors.As(err, &found) || !errors.Is(err, headrace.InvalidField) || errors.Is(err, headrace.StudyExists) {
		t.Fatalf("got %#v", err)
	}
	want := headrace.Violation{
		Field: "space.lr.low", Message: "must be above 0", Value: "-1.0", Remedy: "Use a positive bound.",
	}
	if len(found.Violations) != 2 || found.Violations[0] != want {
		t.Fatalf("violations %+v", found.Violations)
	}
	if text := err.Error(); text != "space.lr.low: must be above 0 (got -1.0). Use a positive bound.\ntrials: must be at least 1." {
		t.Fatalf("text %q", text)
	}
}

func TestWhatIsNoErrorOfHeadraceIsNamed(t *testing.T) {
	for _, one := range []struct {
		sent   error
		reason headrace.Reason
		says   string
	}{
		{status.Error(codes.Unimplemented, "unknown method"), headrace.Unsupported, "older than this client"},
		{status.Error(codes.ResourceExhausted, "received message larger than max"), headrace.TooLarge, "larger than max"},
		{status.Error(codes.ResourceExhausted, "Concurrent RPC limit exceeded!"), headrace.Internal, "Concurrent RPC limit"},
		{status.Error(codes.PermissionDenied, "no entry"), headrace.Internal, "no entry"},
		{failure(codes.NotFound, "STUDY_NOT_FOUND", "no study", "List them."), headrace.StudyNotFound, "no study. List them."},
		{failure(codes.FailedPrecondition, "OF_NEXT_YEAR", "new trouble", "Wait."), "OF_NEXT_YEAR", "new trouble. Wait."},
	} {
		net, fake := newNetwork(), digits()
		fake.get = func(context.Context, *pb.GetStudyRequest) (*pb.Study, error) { return nil, one.sent }
		net.serve(t, "a:1", fake.register)
		_, err := net.client(t, "a:1").Study("digits").Get(t.Context())
		if !errors.Is(err, one.reason) || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%v became %v", one.sent, err)
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	client := newNetwork().client(t, "a:1,b:2", headrace.WithConnectTimeout(300*time.Millisecond))
	began := time.Now()
	_, err := client.Study("digits").Get(t.Context())
	if !errors.Is(err, headrace.Unreachable) || !strings.Contains(err.Error(), "a:1,b:2") {
		t.Fatalf("got %v", err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Fatalf("it took %v", took)
	}
}

func TestContextsEndCalls(t *testing.T) {
	net, fake := newNetwork(), digits()
	fake.get = func(ctx context.Context, _ *pb.GetStudyRequest) (*pb.Study, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	net.serve(t, "a:1", fake.register)
	study := net.client(t, "a:1").Study("digits")

	short, cancel := context.WithTimeout(t.Context(), 200*time.Microsecond)
	defer cancel()
	if _, err := study.Get(short); !errors.Is(err, headrace.Deadline) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := study.Get(cancelled); !errors.Is(err, headrace.Cancelled) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestAClosedClientSaysSo(t *testing.T) {
	net := newNetwork()
	net.serve(t, "a:1", digits().register)
	client := net.client(t, "a:1")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Study("digits").Get(t.Context()); !errors.Is(err, headrace.Cancelled) {
		t.Fatalf("got %v", err)
	}
}

func TestTheTokenArrivesAndNeverInClear(t *testing.T) {
	net, fake := newNetwork(), digits()
	var seen atomic.Value
	fake.get = func(ctx context.Context, r *pb.GetStudyRequest) (*pb.Study, error) {
		found, _ := metadata.FromIncomingContext(ctx)
		seen.Store(strings.Join(found.Get("authorization"), ","))
		return &pb.Study{Name: r.GetName()}, nil
	}
	net.serve(t, "127.0.0.1:1", fake.register)
	t.Setenv("HEADRACE_TOKEN", "of the environment")
	for want, options := range map[string][]headrace.Option{
		"Bearer secret": {headrace.WithToken("secret")}, "Bearer of the environment": nil,
	} {
		if _, err := net.client(t, "127.0.0.1:1", options...).Study("digits").Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		if seen.Load() != want {
			t.Fatalf("the server saw %q, want %q", seen.Load(), want)
		}
	}
	if _, err := net.client(t, "127.0.0.1:1", headrace.WithToken(" secret\n")).Study("digits").Get(t.Context()); err != nil ||
		seen.Load() != "Bearer secret" {
		t.Fatalf("the server saw %q: %v", seen.Load(), err)
	}
	for _, none := range []string{"sec\nret", "sécret"} {
		if _, err := headrace.New("127.0.0.1:1", headrace.WithToken(none)); !errors.Is(err, headrace.InvalidField) {
			t.Fatalf("%q: got %v", none, err)
		}
	}
	_, err := headrace.New("example.org:7440", headrace.WithToken("secret"))
	if !errors.Is(err, headrace.InvalidField) || strings.Contains(err.Error(), "secret") {
		t.Fatalf("got %v", err)
	}
}

func TestListsGoPageByPage(t *testing.T) {
	net, fake := newNetwork(), digits()
	asked := 0
	fake.list = func(r *pb.ListTrialsRequest) (*pb.ListTrialsResponse, error) {
		asked++
		if r.GetPageToken() == "" {
			return &pb.ListTrialsResponse{
				Trials: []*pb.Trial{{Number: 0}, {Number: 1}}, NextPageToken: "next",
				Unshown: []*pb.Unshown{{Name: "studies/digits/trials/2", Reason: "a defect"}},
			}, nil
		}
		return &pb.ListTrialsResponse{Trials: []*pb.Trial{{Number: 3}}}, nil
	}
	net.serve(t, "a:1", fake.register)
	study := net.client(t, "a:1").Study("digits")
	var numbers []int64
	var unshown []string
	for trial, err := range study.Trials(t.Context()) {
		var left *headrace.Unshown
		if errors.As(err, &left) {
			unshown = append(unshown, left.Name)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, trial.GetNumber())
	}
	if len(numbers) != 3 || numbers[2] != 3 || len(unshown) != 1 || asked != 2 {
		t.Fatalf("numbers %v, unshown %v, %d calls", numbers, unshown, asked)
	}
	for range study.Trials(t.Context()) {
		break // the first page is enough
	}
	if asked != 3 {
		t.Fatalf("%d calls, want 3", asked)
	}
}
