package headrace

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	errorDomain = "headrace"
	// mostToldBytes is how much of a foreign text is included in a message.
	mostToldBytes = 160
)

// server is the kind of server that calls use, as named in messages.
type server struct {
	kind    string
	address string
	// start is how such a server is started.
	start string
}

// errorOf converts an error of gRPC to an *Error. The context is the caller's own.
func (s server) errorOf(ctx context.Context, err error) *Error {
	found, _ := status.FromError(err)
	if told := toldBy(found); told != nil {
		return told
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	text := oneLine(found.Message())
	switch found.Code() {
	case codes.Unavailable:
		return &Error{
			Reason: Unreachable, Code: codes.Unavailable, Remedy: s.remedy(text),
			Message: fmt.Sprintf("No Headrace %s answers at %s%s", s.kind, s.address, detail(text)),
		}
	case codes.DeadlineExceeded:
		return &Error{
			Reason: Deadline, Code: codes.DeadlineExceeded,
			Message: fmt.Sprintf("The %s at %s did not answer in time", s.kind, s.address),
			Remedy:  "Try again: a request that arrives twice is carried out once.",
		}
	case codes.Canceled:
		return &Error{
			Reason: Cancelled, Code: codes.Canceled,
			Message: "The client was closed, or the call was cancelled, before the answer came",
			Remedy:  "Call again if the answer is still wanted.",
		}
	case codes.Unimplemented:
		return &Error{
			Reason: Unsupported, Code: codes.Unimplemented,
			Message: fmt.Sprintf("The %s at %s does not know this call%s", s.kind, s.address, detail(text)),
			Remedy:  "Update the server: it is older than this client. Or correct the address.",
		}
	}
	if found.Code() == codes.ResourceExhausted && strings.Contains(text, "larger than") {
		return &Error{
			Reason: TooLarge, Code: codes.ResourceExhausted,
			Message: "The message is too large" + detail(text), Remedy: "Ask for less, or send less at once.",
		}
	}
	return &Error{
		Reason: Internal, Code: found.Code(),
		Message: fmt.Sprintf("The %s answered %s%s", s.kind, found.Code(), detail(text)),
		Remedy:  "The server's log has the details.",
	}
}

// remedy says what to do if nobody answers, depending on gRPC's message.
func (s server) remedy(text string) string {
	switch {
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "Leave out tls://: the server there speaks plain text."
	case strings.Contains(text, "authentication handshake failed"):
		return "Name the authority of its certificate with WithCA or HEADRACE_TLS_CA, and the host as the certificate does."
	}
	return s.start
}

// toldBy is the error that a Headrace server describes in the status; nil for any other status.
func toldBy(found *status.Status) *Error {
	var told *Error
	var violations []Violation
	for _, one := range found.Details() {
		switch detail := one.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == errorDomain {
				told = &Error{
					Reason: Reason(detail.GetReason()), Code: found.Code(),
					Message: found.Message(), Remedy: detail.GetMetadata()["remedy"],
				}
			}
		case *errdetails.BadRequest:
			for _, field := range detail.GetFieldViolations() {
				violations = append(violations, violationOf(field))
			}
		}
	}
	if told != nil {
		told.Violations = violations
	}
	return told
}

// violationOf reads a description: the message, the value and the remedy, on one line each.
func violationOf(field *errdetails.BadRequest_FieldViolation) Violation {
	message, rest, _ := strings.Cut(field.GetDescription(), "\n")
	value, remedy, _ := strings.Cut(rest, "\n")
	return Violation{Field: field.GetField(), Message: message, Value: value, Remedy: remedy}
}

// ended is the error of a call whose context ended.
func ended(ctx context.Context) *Error {
	cause := ctx.Err()
	if cause == context.DeadlineExceeded {
		return &Error{
			Reason: Deadline, Code: codes.DeadlineExceeded, cause: cause,
			Message: "The context's deadline passed before the answer came",
			Remedy:  "Give the call more time. A change may or may not have been made.",
		}
	}
	return &Error{
		Reason: Cancelled, Code: codes.Canceled, cause: cause,
		Message: "The context was cancelled before the answer came",
		Remedy:  "Call again if the answer is still wanted.",
	}
}

// detail is a foreign text in brackets, truncated; empty if nothing listens at the address, as that needs no
// explanation.
func detail(text string) string {
	if text == "" || strings.Contains(text, "connection refused") {
		return ""
	}
	if at := strings.LastIndex(text, "tls: "); at >= 0 {
		text = "TLS: " + text[at+len("tls: "):]
	}
	text = strings.TrimRight(text, `."`)
	if len(text) > mostToldBytes {
		text = strings.ToValidUTF8(text[:mostToldBytes], "") + "…"
	}
	return " (" + text + ")"
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
