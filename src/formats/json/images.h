// Images in JSON messages, recognised by the name of their schema.
#pragma once

#include <memory>
#include <string_view>

#include "formats/messages/output.h"

namespace robocache::messages {

// nullptr if the schema is not that of an image.
std::unique_ptr<MessageReader> make_json_image(const Schema& schema, std::string_view topic);

}  // namespace robocache::messages
