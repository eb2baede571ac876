package inject

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
)

// basic returns a value as a bool, int64, uint64, float64 or string, and any other value as it is.
func basic(v any) any {
	r := bare(reflect.ValueOf(v))
	switch {
	case !r.IsValid():
		return nil
	case r.Kind() == reflect.Bool:
		return r.Bool()
	case r.CanInt():
		return r.Int()
	case r.CanUint():
		return r.Uint()
	case r.CanFloat():
		return r.Float()
	case r.Kind() == reflect.String:
		return r.String()
	}
	return r.Interface()
}

var errComparison = errors.New("incompatible types for comparison")

// equal reports whether a value equals one of others.
func equal(value any, others ...any) (bool, error) {
	if len(others) == 0 {
		return false, errors.New("missing argument for comparison")
	}
	a := basic(value)
	for _, other := range others {
		b := basic(other)
		order, err := compareBasic(a, b) // also integers with and without a sign
		switch {
		case err == nil && order != 0:
		case err == nil:
			return true, nil
		case a != nil && b != nil && (!reflect.TypeOf(a).Comparable() || !reflect.TypeOf(b).Comparable()):
			return false, fmt.Errorf("non-comparable types %T, %T", value, other)
		case a != nil && b != nil && reflect.TypeOf(a) != reflect.TypeOf(b):
			return false, errComparison
		case a == b:
			return true, nil
		}
	}
	return false, nil
}

// compareBasic compares two numbers or two texts.
func compareBasic(value, other any) (int, error) {
	switch a := basic(value).(type) {
	case int64:
		switch b := basic(other).(type) {
		case int64:
			return cmp.Compare(a, b), nil
		case uint64:
			if a < 0 {
				return -1, nil
			}
			return cmp.Compare(uint64(a), b), nil
		}
	case uint64:
		switch b := basic(other).(type) {
		case uint64:
			return cmp.Compare(a, b), nil
		case int64:
			if b < 0 {
				return 1, nil
			}
			return cmp.Compare(a, uint64(b)), nil
		}
	case float64:
		if b, ok := basic(other).(float64); ok {
			return cmp.Compare(a, b), nil
		}
	case string:
		if b, ok := basic(other).(string); ok {
			return cmp.Compare(a, b), nil
		}
	}
	return 0, errComparison
}

// compareValues orders the keys of a map.
func compareValues(a, b reflect.Value) int {
	order, _ := compareBasic(a.Interface(), b.Interface())
	return order
}

// ordered returns a function that compares two values.
func ordered(holds func(order int) bool) func(a, b any) (bool, error) {
	return func(a, b any) (bool, error) {
		order, err := compareBasic(a, b)
		return err == nil && holds(order), err
	}
}

// index returns an item of a map, a list or a text.
func index(of any, keys ...any) (any, error) {
	value := reflect.ValueOf(of)
	for _, key := range keys {
		value, _ = indirect(value)
		k := bare(reflect.ValueOf(key))
		switch value.Kind() {
		case reflect.Invalid:
			return nil, errors.New("index of untyped nil")
		case reflect.Map:
			if !k.IsValid() || !k.Type().AssignableTo(value.Type().Key()) {
				return nil, fmt.Errorf("value has type %T; should be %s", key, value.Type().Key())
			}
			item := value.MapIndex(k)
			if !item.IsValid() {
				item = reflect.Zero(value.Type().Elem())
			}
			value = bare(item)
		case reflect.Slice, reflect.Array, reflect.String:
			if !k.IsValid() || !k.CanInt() {
				return nil, fmt.Errorf("cannot index slice/array with type %T", key)
			}
			if i := k.Int(); i < 0 || i >= int64(value.Len()) {
				return nil, fmt.Errorf("index out of range: %d", i)
			}
			value = bare(value.Index(int(k.Int())))
		default:
			return nil, fmt.Errorf("can't index item of type %s", value.Type())
		}
	}
	if !value.IsValid() {
		return nil, nil
	}
	return value.Interface(), nil
}

// length returns the number of items or bytes.
func length(of any) (int, error) {
	value, isNil := indirect(reflect.ValueOf(of))
	switch {
	case isNil || !value.IsValid():
		return 0, errors.New("len of nil pointer")
	case value.Kind() == reflect.String, value.Kind() == reflect.Slice, value.Kind() == reflect.Array, value.Kind() == reflect.Map:
		return value.Len(), nil
	}
	return 0, fmt.Errorf("len of type %s", value.Type())
}
