package headrace

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	pageSize    = 500
	studyPrefix = "studies/"
)

// Client talks to a scheduler, or to several of one cluster.
type Client struct {
	transport *transport
}

// New creates a client. The address is HOST:PORT, or several with commas: if one is gone, the next one is used.
// tls:// before the first means TLS. An empty address means HEADRACE_ADDRESS, or else the scheduler of `headrace up`
// on this machine, or else 127.0.0.1:7440. If HEADRACE_HOME names a folder in which no `headrace up` runs, the error
// is Unreachable. Nothing is sent before the first call.
func New(address string, options ...Option) (*Client, error) {
	found, err := findTarget(address)
	if err != nil {
		return nil, err
	}
	set := collect(30*time.Second, options)
	if set.token == "" {
		set.token = os.Getenv(tokenVariable)
	}
	made, err := newTransport(found, set, server{
		kind:  "scheduler",
		start: "Start one with `headrace up`, or give its address to New or in HEADRACE_ADDRESS.",
	})
	if err != nil {
		return nil, err
	}
	return &Client{transport: made}, nil
}

// Close closes the connections. Calls and watches in progress end with an error.
func (c *Client) Close() error { return c.transport.route.close() }

// CreateStudy creates a study and starts it. The id has lower-case letters, digits and hyphens.
func (c *Client) CreateStudy(ctx context.Context, id string, spec *pb.StudySpec) (*Study, error) {
	_, err := call(ctx, c.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.CreateStudy,
		&pb.CreateStudyRequest{RequestId: requestID(), StudyId: id, Spec: spec})
	if err != nil {
		return nil, err
	}
	return c.Study(id), nil
}

// Study is a handle of a study, which need not exist. The name is `digits` or `studies/digits`.
func (c *Client) Study(name string) *Study {
	return &Study{client: c, id: strings.TrimPrefix(name, studyPrefix)}
}

// Studies lists all studies, newest first. A study that cannot be shown is returned as an [*Unshown] error, and the
// list continues.
func (c *Client) Studies(ctx context.Context) iter.Seq2[*pb.Study, error] {
	return pages(func(token string) ([]*pb.Study, []*pb.Unshown, string, error) {
		page, err := call(ctx, c.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ListStudies,
			&pb.ListStudiesRequest{PageSize: pageSize, PageToken: token})
		return page.GetStudies(), page.GetUnshown(), page.GetNextPageToken(), err
	})
}

// Preview says what a study would do, before anything is spent. The request's fields other than the spec may be zero.
func (c *Client) Preview(ctx context.Context, request *pb.PreviewStudyRequest) (*pb.PreviewStudyResponse, error) {
	return call(ctx, c.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.PreviewStudy, request)
}

// Workers lists the workers that are or were connected. With history, their slots include the load of the last hour.
func (c *Client) Workers(ctx context.Context, history bool) iter.Seq2[*pb.WorkerStatus, error] {
	return pages(func(token string) ([]*pb.WorkerStatus, []*pb.Unshown, string, error) {
		page, err := call(ctx, c.transport, pb.NewStudyServiceClient, pb.StudyServiceClient.ListWorkers,
			&pb.ListWorkersRequest{PageSize: pageSize, PageToken: token, History: history})
		return page.GetWorkers(), page.GetUnshown(), page.GetNextPageToken(), err
	})
}

// Unshown is an entry that a list leaves out because the scheduler cannot show it. The list continues after it.
type Unshown struct {
	// Name is its resource name, such as studies/digits.
	Name string
	// Why says what is wrong with it.
	Why string
}

// Error includes both.
func (u *Unshown) Error() string { return u.Name + " cannot be shown: " + u.Why }

// pages walks a list page by page, and requests the next page when it is needed.
func pages[T proto.Message](page func(token string) ([]T, []*pb.Unshown, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		for token := ""; ; {
			found, unshown, next, err := page(token)
			if err != nil {
				yield(none, err)
				return
			}
			for _, one := range found {
				if !yield(one, nil) {
					return
				}
			}
			for _, one := range unshown {
				if !yield(none, &Unshown{Name: one.GetName(), Why: one.GetReason()}) {
					return
				}
			}
			if next == "" {
				return
			}
			token = next
		}
	}
}

// requestID is the id of a new request; its repeats carry the same id.
func requestID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}

func trialName(study string, number int64) string {
	return studyPrefix + study + "/trials/" + strconv.FormatInt(number, 10)
}
