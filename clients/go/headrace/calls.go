package headrace

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"iter"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// subject is what a call is about: a study or a trial with its resource name, or the client itself without one.
type subject interface {
	subject() (client *Client, name string)
}

func (c *Client) subject() (*Client, string) { return c, "" }
func (s *Study) subject() (*Client, string)  { return s.client, s.Name() }
func (t *Trial) subject() (*Client, string)  { return t.study.client, t.Name() }
func (a *Asked) subject() (*Client, string)  { return a.study.client, "" }

// method is a method of the StudyService, such as pb.StudyServiceClient.GetStudy.
type method[Request, Response any] func(
	pb.StudyServiceClient, context.Context, Request, ...grpc.CallOption,
) (Response, error)

// send calls a method of the StudyService. Where the request leaves them empty, it gets a new request id and the name of the
// subject.
func send[Request proto.Message, Response any](
	ctx context.Context, about subject, do method[Request, Response], request Request,
) (Response, error) {
	client, name := about.subject()
	fill(request, "request_id", requestID())
	for _, field := range []protoreflect.Name{"name", "study", "parent"} {
		fill(request, field, name)
	}
	return call(ctx, client.transport, pb.NewStudyServiceClient, do, request)
}

// fill sets a string field of a message, if there is such a field and it is empty.
func fill(message proto.Message, field protoreflect.Name, value string) {
	fields := message.ProtoReflect()
	known := fields.Descriptor().Fields().ByName(field)
	if known != nil && known.Kind() == protoreflect.StringKind && !fields.Has(known) {
		fields.Set(known, protoreflect.ValueOfString(value))
	}
}

// studyOf and trialOf take the result out of the response of send.
func studyOf[Response interface{ GetStudy() *pb.Study }](response Response, err error) (*pb.Study, error) {
	return response.GetStudy(), err
}

func trialOf[Response interface{ GetTrial() *pb.Trial }](response Response, err error) (*pb.Trial, error) {
	return response.GetTrial(), err
}

// page is a response with a part of a list.
type page interface {
	GetUnshown() []*pb.Unshown
	GetNextPageToken() string
}

// list walks a list page by page. It requests a page when the caller needs it.
func list[Request proto.Message, Response page, Item proto.Message](
	ctx context.Context, about subject, do method[Request, Response], request Request, items func(Response) []Item,
) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		var none Item
		for token := ""; ; {
			one := proto.Clone(request).(Request)
			fields := one.ProtoReflect()
			known := fields.Descriptor().Fields()
			fields.Set(known.ByName("page_size"), protoreflect.ValueOfInt32(pageSize))
			fields.Set(known.ByName("page_token"), protoreflect.ValueOfString(token))
			found, err := send(ctx, about, do, one)
			if err != nil {
				yield(none, err)
				return
			}
			for _, item := range items(found) {
				if !yield(item, nil) {
					return
				}
			}
			for _, unshown := range found.GetUnshown() {
				if !yield(none, &Unshown{Name: unshown.GetName(), Why: unshown.GetReason()}) {
					return
				}
			}
			if token = found.GetNextPageToken(); token == "" {
				return
			}
		}
	}
}

// requestID is a new request's id; its repeats carry the same one.
func requestID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	return hex.EncodeToString(id[:])
}
