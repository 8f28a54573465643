// Images in JSON messages, known by the name of their schema.
#pragma once

#include <memory>
#include <string_view>

#include "formats/messages/output.h"

namespace robocache::messages {

// nullptr: the schema is not that of an image.
std::unique_ptr<Messages> make_json_image(const Schema& schema, std::string_view topic);

}  // namespace robocache::messages
