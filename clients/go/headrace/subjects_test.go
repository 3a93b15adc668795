package headrace_test

import (
	"context"
	"strings"
	"testing"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// text is the value of a string field of a message; there says whether it has such a field.
func text(message proto.Message, field protoreflect.Name) (value string, there bool) {
	fields := message.ProtoReflect()
	if known := fields.Descriptor().Fields().ByName(field); known != nil {
		return fields.Get(known).String(), true
	}
	return "", false
}

func TestRequestsNameTheirSubject(t *testing.T) {
	var asked []proto.Message
	record := func(
		_ context.Context, _ string, request, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption,
	) error {
		asked = append(asked, proto.Clone(request.(proto.Message)))
		return failure(codes.NotFound, "STUDY_NOT_FOUND", "no study", "List them.")
	}
	client := newNetwork().client(t, "a:1", headrace.WithDialOptions(grpc.WithUnaryInterceptor(record)))
	ctx := t.Context()
	study := client.Study("digits")
	trial := study.Trial(3)
	_, _ = study.Pause(ctx)
	_, _ = study.Resume(ctx)
	_, _ = study.Stop(ctx, "why")
	_ = study.Delete(ctx)
	_, _ = study.AddTrials(ctx, headrace.Params{"lr": 0.1})
	_, _ = study.Retry(ctx, 3)
	_, _ = study.ExtendTrials(ctx, 2)
	_, _ = study.ExtendSteps(ctx, 20)
	_, _ = study.Importance(ctx)
	_, _ = study.Room(ctx)
	for range study.Trials(ctx) {
	}
	for range study.Reports(ctx) {
	}
	ofStudy := len(asked)
	_, _ = trial.Get(ctx)
	_, _ = trial.Explain(ctx)
	_, _ = trial.Pause(ctx)
	_, _ = trial.Resume(ctx)
	_, _ = trial.Stop(ctx, "why")
	for range trial.Reports(ctx) {
	}
	if ofStudy != 12 || len(asked) != 18 {
		t.Fatalf("%d calls, %d of them of the study", len(asked), ofStudy)
	}
	ids := map[string]bool{}
	for number, request := range asked {
		kind := string(request.ProtoReflect().Descriptor().Name())
		want := "studies/digits"
		if number >= ofStudy {
			want += "/trials/3"
		}
		named := false
		for _, field := range []protoreflect.Name{"name", "study", "parent"} {
			if value, there := text(request, field); there {
				named = true
				if value != want {
					t.Errorf("%s: %s is %q", kind, field, value)
				}
			}
		}
		if !named {
			t.Errorf("%s names nothing", kind)
		}
		if id, there := text(request, "request_id"); there {
			if len(id) != 32 || ids[id] {
				t.Errorf("%s: request_id is %q", kind, id)
			}
			ids[id] = true
		} else if !strings.HasPrefix(kind, "Get") && !strings.HasPrefix(kind, "List") {
			switch request.(type) {
			case *pb.ExplainTrialRequest, *pb.MeasureImportanceRequest, *pb.FindRoomRequest:
			default:
				t.Errorf("%s has no request id", kind)
			}
		}
	}
}
