package headrace

import (
	"context"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

const (
	pageSize    = 500
	studyPrefix = "studies/"
)

// Client talks to a scheduler, or to several of one cluster.
type Client struct {
	transport *transport
}

// New makes a client. The address is HOST:PORT, or several separated by commas: if one does not answer, the next one is used.
// tls:// before the first means TLS. An empty address means HEADRACE_ADDRESS, then the scheduler of `headrace up` on this
// machine, then 127.0.0.1:7440. If HEADRACE_HOME names a folder in which no `headrace up` runs, the error is Unreachable.
// Nothing is sent before the first call.
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

// CreateStudy creates a study and starts it. The id consists of lower-case letters, digits and hyphens.
func (c *Client) CreateStudy(ctx context.Context, id string, spec *pb.StudySpec) (*Study, error) {
	request := &pb.CreateStudyRequest{StudyId: id, Spec: spec}
	if _, err := send(ctx, c, pb.StudyServiceClient.CreateStudy, request); err != nil {
		return nil, err
	}
	return c.Study(id), nil
}

// Study returns a handle to a study, which need not exist. The name is `digits` or `studies/digits`.
func (c *Client) Study(name string) *Study {
	return &Study{client: c, id: strings.TrimPrefix(name, studyPrefix)}
}

// Studies lists all studies, newest first. A study that cannot be shown is returned as an [*Unshown] error, and the list
// continues.
func (c *Client) Studies(ctx context.Context) iter.Seq2[*pb.Study, error] {
	return c.Select(ctx, "")
}

// Select lists the studies that match a filter such as "tag:paper created>7d", newest first.
func (c *Client) Select(ctx context.Context, filter string) iter.Seq2[*pb.Study, error] {
	request := &pb.ListStudiesRequest{Filter: filter}
	return list(ctx, c, pb.StudyServiceClient.ListStudies, request, (*pb.ListStudiesResponse).GetStudies)
}

// Preview predicts what a study would do, without running anything. All fields of the request but the spec may be zero.
func (c *Client) Preview(ctx context.Context, request *pb.PreviewStudyRequest) (*pb.PreviewStudyResponse, error) {
	return send(ctx, c, pb.StudyServiceClient.PreviewStudy, request)
}

// Workers lists workers, connected or not. With history, their slots include the load of the last hour.
func (c *Client) Workers(ctx context.Context, history bool) iter.Seq2[*pb.WorkerStatus, error] {
	request := &pb.ListWorkersRequest{History: history}
	return list(ctx, c, pb.StudyServiceClient.ListWorkers, request, (*pb.ListWorkersResponse).GetWorkers)
}

// Unshown is an item that a list omits because the scheduler cannot show it. The rest of the list follows.
type Unshown struct {
	// Name is its resource name, such as studies/digits.
	Name string
	// Why is what is wrong with it.
	Why string
}

// Error includes both.
func (u *Unshown) Error() string { return u.Name + " cannot be shown: " + u.Why }

func trialName(study string, number int64) string {
	return studyPrefix + study + "/trials/" + strconv.FormatInt(number, 10)
}
