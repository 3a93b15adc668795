package headrace

import (
	"fmt"
	"math"
	"reflect"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

// Params is a configuration: each active parameter's value by name. A value is a float64, an int64, a string or a
// bool. An int is accepted as an int64.
type Params map[string]any

// ParamsOf reads the configuration of a message. Values of kinds that only a newer server knows are left out.
func ParamsOf(assignment *pb.ParameterAssignment) Params {
	params := make(Params, len(assignment.GetValues()))
	for name, value := range assignment.GetValues() {
		switch kind := value.GetKind().(type) {
		case *pb.ParameterValue_FloatValue:
			params[name] = kind.FloatValue
		case *pb.ParameterValue_IntValue:
			params[name] = kind.IntValue
		case *pb.ParameterValue_StringValue:
			params[name] = kind.StringValue
		case *pb.ParameterValue_BoolValue:
			params[name] = kind.BoolValue
		}
	}
	return params
}

// Decode stores the parameters in the fields of a struct: those with a tag `param:"name"`. A field keeps its value if
// the parameter is not active. A whole number also fits a floating-point field.
func (p Params) Decode(into any) error {
	at := reflect.ValueOf(into)
	if at.Kind() != reflect.Pointer || at.Elem().Kind() != reflect.Struct {
		return invalid("into", fmt.Sprintf("%T", into), "is no pointer to a struct", "Give the address of a struct.")
	}
	at = at.Elem()
	for i := range at.NumField() {
		name := at.Type().Field(i).Tag.Get("param")
		value, active := p[name]
		if name == "" || !active {
			continue
		}
		if !store(at.Field(i), reflect.ValueOf(value)) {
			return invalid(name, fmt.Sprint(value), fmt.Sprintf("is a %T and the field is a %s", value, at.Field(i).Type()),
				"Give the field the type of the parameter: float64, int64, string or bool.")
		}
	}
	return nil
}

// store sets a field, and returns whether the value fits.
func store(field, value reflect.Value) bool {
	switch {
	case !field.CanSet():
		return false
	case field.CanFloat() && value.CanFloat():
		field.SetFloat(value.Float())
	case field.CanFloat() && value.CanInt():
		field.SetFloat(float64(value.Int()))
	case field.CanInt() && value.CanInt() && !field.OverflowInt(value.Int()):
		field.SetInt(value.Int())
	case field.Kind() == reflect.String && value.Kind() == reflect.String:
		field.SetString(value.String())
	case field.Kind() == reflect.Bool && value.Kind() == reflect.Bool:
		field.SetBool(value.Bool())
	default:
		return false
	}
	return true
}

// proto is the configuration as a message; field is its name in errors.
func (p Params) proto(field string) (*pb.ParameterAssignment, error) {
	values := make(map[string]*pb.ParameterValue, len(p))
	for name, value := range p {
		made, ok := Value(value)
		if !ok {
			return nil, invalid(field+"."+name, fmt.Sprint(value), fmt.Sprintf("is a %T", value),
				"Give a float64, an int64, an int, a string or a bool.")
		}
		values[name] = made
	}
	return &pb.ParameterAssignment{Values: values}, nil
}

// Value converts a parameter's value to a message: a float64, an int64, an int, a string or a bool. ok is false for
// anything else.
func Value(value any) (made *pb.ParameterValue, ok bool) {
	switch known := value.(type) {
	case float64:
		return &pb.ParameterValue{Kind: &pb.ParameterValue_FloatValue{FloatValue: known}}, !math.IsNaN(known)
	case int64:
		return &pb.ParameterValue{Kind: &pb.ParameterValue_IntValue{IntValue: known}}, true
	case int:
		return &pb.ParameterValue{Kind: &pb.ParameterValue_IntValue{IntValue: int64(known)}}, true
	case string:
		return &pb.ParameterValue{Kind: &pb.ParameterValue_StringValue{StringValue: known}}, true
	case bool:
		return &pb.ParameterValue{Kind: &pb.ParameterValue_BoolValue{BoolValue: known}}, true
	}
	return nil, false
}
